// SPDX-License-Identifier: Apache-2.0
#include "method/policies/recode.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/expect.h"
#include "base/fail.h"
#include "cache/code/coded_side.h"
#include "linalg/matrix.h"

namespace kvspan {
namespace {

// B_new B_old' [r_new, r_old]; the synthesis of an orthonormal code is B' [D, r].
Matrix change_of_basis(const Code& from, const Code& to) {
  const auto old_rank = static_cast<std::size_t>(from.rank());
  const auto new_rank = static_cast<std::size_t>(to.rank());
  const float* a = to.synthesis(0);
  const float* b = from.synthesis(0);
  KVSPAN_EXPECT(a != nullptr && b != nullptr, "bases that are mapped are stored as f32");
  MatrixD sum(new_rank, old_rank);
  for (std::int32_t k = 0; k < from.width(); ++k, a += new_rank, b += old_rank) {
    for (std::size_t i = 0; i < new_rank; ++i) {
      for (std::size_t j = 0; j < old_rank; ++j) sum(i, j) += double{a[i]} * double{b[j]};
    }
  }
  Matrix change(new_rank, old_rank);
  for (std::size_t i = 0; i < new_rank * old_rank; ++i) {
    change.data()[i] = static_cast<float>(sum.data()[i]);
  }
  return change;
}

Result<std::shared_ptr<const CodedSide>> rotated(const CodedSide& side,
                                                 const std::shared_ptr<const Code>& to,
                                                 const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_EXPECT(side.parts().size() == 1, "one code for the heads of a group");
  const CodedSide::Part& part = side.parts().front();
  const Code& from = *part.code;
  const Matrix change = change_of_basis(from, *to);
  const auto n = static_cast<std::size_t>(side.tokens());
  Matrix old(n, change.cols()), next(n, change.rows());
  part.coefficients(0, old.mutable_view());
  // How far a row moves: |x^|^2 - |c'|^2, both being projections. Rounding of f32 in c' is covered
  // by the last term.
  std::vector<float> moved(static_cast<std::size_t>(from.heads()) * n);
  for (std::size_t t = 0; t < n; ++t) {
    double before = 0.0, after = 0.0;
    for (std::size_t j = 0; j < change.cols(); ++j) {
      before += double{old(t, j)} * double{old(t, j)};
    }
    for (std::size_t i = 0; i < change.rows(); ++i) {
      double sum = 0.0;
      for (std::size_t j = 0; j < change.cols(); ++j) {
        sum += double{change(i, j)} * double{old(t, j)};
      }
      next(t, i) = static_cast<float>(sum);
      after += sum * sum;
    }
    const double distance = std::sqrt(std::max(0.0, before - after) + 1e-6 * before);
    for (std::int32_t h = 0; h < from.heads(); ++h) {
      moved[static_cast<std::size_t>(h) * n + t] =
          static_cast<float>(distance * std::abs(to->rope().magnitude));
    }
  }
  const TensorView<const float, 2> coefficients = next.view();
  return side.recode(
      std::span(&to, 1), std::span(&coefficients, 1),
      side.has_residuals() ? std::span<const float>(moved) : std::span<const float>(), ledger);
}

// Puts what `recode` makes of each coded side in its place: all of them, or on failure none.
template <class Recode>
Status exchange_sides(Group& group, const NewCodes& codes, const Recode& recode) {
  SegmentList& list = group.list();
  std::vector<std::pair<std::size_t, Segment>> changed;
  for (std::size_t i = 0; i < list.segments().size(); ++i) {
    const Segment& old = list.segments()[i];
    if (!old.coded()) continue;
    Segment next = old;
    if (codes.keys && old.coded_keys) {
      KVSPAN_TRY(next.coded_keys, recode(*old.coded_keys, codes.keys));
    }
    if (codes.values && old.coded_values) {
      KVSPAN_TRY(next.coded_values, recode(*old.coded_values, codes.values));
    }
    changed.emplace_back(i, std::move(next));
  }
  for (auto& [index, segment] : changed) list.exchange(index, std::move(segment));
  return {};
}

using Recoded = Result<std::shared_ptr<const CodedSide>>;

}  // namespace

Status rotate_coefficients(Group& group, const NewCodes& codes) {
  return exchange_sides(group, codes, [&](const CodedSide& side, const auto& code) -> Recoded {
    return rotated(side, code, group.list().ledger());
  });
}

Status reuse_coefficients(Group& group, const NewCodes& codes) {
  return exchange_sides(group, codes, [&](const CodedSide& side, const auto& code) -> Recoded {
    return side.reread(std::span(&code, 1), group.list().ledger());
  });
}

}  // namespace kvspan
