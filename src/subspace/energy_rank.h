// SPDX-License-Identifier: Apache-2.0
// How many directions hold a given share of the energy.
#pragma once

#include <cstddef>
#include <span>

namespace kvspan {

// The smallest r whose first r squared singular values (descending, not negative) sum to at least
// share * total; squared.size() where all of them do not. 0 when total is 0. 0 < share <= 1. For a
// sketch, whose values are shrunk, pass the true energy as total: the answer then errs upwards.
std::size_t rank_for_energy(std::span<const double> squared, double total, double share);
// Of the sum of the values themselves.
std::size_t rank_for_energy(std::span<const double> squared, double share);

}  // namespace kvspan
