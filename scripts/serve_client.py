#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Talks to a running server with the openai package, as its users do: serve_client.py URL [KEY]

Chat, streaming, tools, a JSON schema, logprobs, n, stop, and a prompt's own log-probabilities (echo). Prints one line
each; exit 1 if one fails. Tools need a model whose chat template knows them, or one that is given (SmolLM2 understands
Qwen's: kvspan serve -m smollm2 --chat-template-file Qwen-Qwen2.5-7B-Instruct.jinja, of llama.cpp's models/templates). The
package is in the virtual environment that scripts/server_suite.py makes:
    ~/.cache/kvspan/server-suite-venv/bin/python scripts/serve_client.py http://127.0.0.1:8080
"""

import json
import sys

import openai


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    client = openai.OpenAI(base_url=sys.argv[1].rstrip("/") + "/v1", api_key=sys.argv[2] if len(sys.argv) > 2 else "none")
    model = client.models.list().data[0].id
    ask = [{"role": "user", "content": "Name a colour."}]

    def chat(max_tokens=48, **more):
        return client.chat.completions.create(model=model, messages=ask, max_tokens=max_tokens, temperature=0, **more)

    def plain():
        text = chat().choices[0].message.content
        assert text, "no text"
        return text

    def streaming():
        pieces = [event.choices[0].delta.content or "" for event in chat(stream=True) if event.choices]
        assert "".join(pieces) == plain(), "other text than without streaming"
        return f"{len(pieces)} pieces"

    def tools():
        tool = {"type": "function", "function": {"name": "paint", "description": "Paints a wall", "parameters": {
            "type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}}}
        # The server does not force a call, and a small model makes one where it has seen some.
        talk = [{"role": "system", "content": "Call the function paint."}]
        for colour in ("red", "green", "yellow"):
            call = {"id": colour, "type": "function", "function": {"name": "paint", "arguments": json.dumps({"colour": colour})}}
            talk += [{"role": "user", "content": f"Paint the wall {colour}."}, {"role": "assistant", "content": "", "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": colour, "content": "ok"}, {"role": "assistant", "content": "Done."}]
        talk.append({"role": "user", "content": "Paint the wall blue."})
        answer = client.chat.completions.create(model=model, messages=talk, max_tokens=64, temperature=0, tools=[tool], tool_choice="required")
        calls = answer.choices[0].message.tool_calls
        assert calls and calls[0].function.name == "paint", f"no call, but {answer.choices[0].message.content!r}"
        return json.loads(calls[0].function.arguments)["colour"]

    def schema():
        form = {"type": "object", "properties": {"colour": {"enum": ["red", "green", "blue"]}}, "required": ["colour"],
                "additionalProperties": False}
        answer = chat(response_format={"type": "json_schema", "json_schema": {"name": "colour", "schema": form}})
        colour = json.loads(answer.choices[0].message.content)["colour"]
        assert colour in form["properties"]["colour"]["enum"]
        return colour

    def logprobs():
        content = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        assert all(len(one.top_logprobs) == 3 and one.logprob <= 0 for one in content)
        return f"{len(content)} tokens"

    def several():
        choices = chat(n=2).choices
        assert len(choices) == 2 and choices[0].message.content == choices[1].message.content
        return "2 answers"

    def stop():
        whole = plain()
        word = whole.split()[min(2, len(whole.split()) - 1)]
        text = chat(stop=[word]).choices[0].message.content
        assert word not in text, "goes on after the stop word"
        return repr(word)

    def echo():
        text = "The sky is blue."
        choice = client.completions.create(model=model, prompt=text, max_tokens=1, temperature=0, echo=True, logprobs=1).choices[0]
        listed = choice.logprobs
        assert choice.text.startswith(text) and "".join(listed.tokens) == choice.text
        assert listed.token_logprobs[0] is None and all(one <= 0 for one in listed.token_logprobs[1:])
        return f"{len(listed.tokens)} tokens, {sum(listed.token_logprobs[1:-1]):.3f} nats"

    failed = 0
    for check in (plain, streaming, tools, schema, logprobs, several, stop, echo):
        try:
            print(f"{check.__name__:10} ok      {check()}")
        except Exception as error:  # whatever it is, it is the finding
            failed += 1
            print(f"{check.__name__:10} FAILED  {type(error).__name__}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
