// SPDX-License-Identifier: Apache-2.0
// RULER's qa_1 and qa_2: the documents that answer a question among others, those of the same
// article first.
#include <algorithm>
#include <memory>

#include "base/fail.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {
namespace {

constexpr std::int32_t kDocumentAnswerTokens = 32;

std::vector<std::string> all_documents(const std::vector<DocumentQuestion>& questions) {
  std::vector<std::string> out;
  for (const DocumentQuestion& question : questions) {
    out.insert(out.end(), question.documents.begin(), question.documents.end());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

bool holds(const std::vector<std::string>& documents, const std::string& document) {
  return std::find(documents.begin(), documents.end(), document) != documents.end();
}

// `count` documents, the question's own among them; every document, again and again, where more are
// asked for than there are.
std::vector<std::string> choose(const DocumentQuestion& question,
                                const std::vector<std::string>& all, std::size_t count,
                                Random& random) {
  std::vector<std::string> out;
  if (count >= all.size()) {
    for (std::size_t i = 0; i < count; ++i) out.push_back(all[i % all.size()]);
    return out;
  }
  out = question.documents;
  std::vector<std::string> others = question.distractors;
  const auto add = [&] {
    const std::size_t wanted = std::min(count - std::min(count, out.size()), others.size());
    for (const std::size_t i : draw(wanted, others.size(), random)) out.push_back(others[i]);
  };
  add();
  if (out.size() < count) {
    others.clear();
    for (const std::string& document : all) {
      if (!holds(out, document)) others.push_back(document);
    }
    add();
  }
  return out;
}

}  // namespace

RetrievalTask document_qa_task(std::string name, const std::vector<DocumentQuestion>& questions) {
  const auto all = std::make_shared<const std::vector<std::string>>(all_documents(questions));
  RetrievalTask task;
  task.name = std::move(name);
  task.answer_tokens = kDocumentAnswerTokens;
  task.match = RetrievalTask::Match::kAny;
  task.make = [&questions, all](std::size_t units, std::size_t index, Random& random) {
    const DocumentQuestion& question = questions[index % questions.size()];
    std::vector<std::string> documents = choose(question, *all, units, random);
    shuffle(documents, random);
    std::vector<std::string> parts;
    for (const std::string& document : documents) {
      parts.push_back(fmt::format("Document {}:\n{}", parts.size() + 1, document));
    }
    constexpr std::string_view kOrder =
        "Answer the question based on the given documents. Only give me the answer and do not "
        "output any other words.";
    RetrievalSample out;
    out.prompt =
        fmt::format("{0}\n\nThe following are given documents.\n\n{1}\n\n{0}\n\nQuestion: {2}",
                    kOrder, join(parts, "\n\n"), question.question);
    out.answer_prefix = " Answer:";
    out.answers = question.answers;
    return out;
  };
  return task;
}

}  // namespace kvspan
