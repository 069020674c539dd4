// SPDX-License-Identifier: Apache-2.0
// The figures of a server as text: /kv is JSON, /metrics the text format of Prometheus.
#pragma once

#include <optional>
#include <string>

#include "server/admission.h"
#include "server/served_contexts.h"
#include "store/prefix_store.h"

namespace kvspan::server {

// `store`: of the prefix store, where there is one.
std::string kv_json(const ServedFigures& figures, const AdmissionFigures& admission,
                    const std::optional<StoreStatistics>& store);
std::string kv_metrics(const ServedFigures& figures, const AdmissionFigures& admission,
                       const std::optional<StoreStatistics>& store);

}  // namespace kvspan::server
