// SPDX-License-Identifier: Apache-2.0
// The figures of a server as text: /kv is JSON, /metrics the text format of Prometheus.
#pragma once

#include <string>

#include "server/admission.h"
#include "server/served_contexts.h"

namespace kvspan::server {

std::string kv_json(const ServedFigures& figures, const AdmissionFigures& admission);
std::string kv_metrics(const ServedFigures& figures, const AdmissionFigures& admission);

}  // namespace kvspan::server
