// SPDX-License-Identifier: Apache-2.0
// One answer of the server, piece by piece (OpenAI's chat completions as server-sent events).

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;  // 0: it was not reached, or went away
  }
}

function with_key(headers = {}) {
  const key = sessionStorage.getItem('kvspan.key');
  return key ? {...headers, Authorization: 'Bearer ' + key} : headers;
}

async function error_of(response) {
  let text = '';
  try {
    text = await response.text();
    text = JSON.parse(text).error.message ?? text;
  } catch { /* not JSON: as it is */ }
  return new ServerError(response.status, text || `the server answers ${response.status}`);
}

// The data of each event. Events end with an empty line; a piece from the network may end anywhere.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    while (true) {
      const {value, done} = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Calls on_piece({text, thought, timings}) for each piece. Resolves to why it ended ('stop', 'length', ...).
async function ask_server(messages, settings, signal, on_piece) {
  let response;
  try {
    response = await fetch('v1/chat/completions', {
      method: 'POST', signal, headers: with_key({'Content-Type': 'application/json'}),
      body: JSON.stringify({...settings, messages, stream: true, timings_per_token: true, stream_options: {include_usage: true}}),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ServerError(0, 'the server cannot be reached');
  }
  if (!response.ok) throw await error_of(response);
  let reason = null;
  try {
    for await (const data of events(response.body)) {
      if (data === '[DONE]') return reason ?? 'stop';
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(event.error.code ?? 500, event.error.message ?? 'the server gave up');
      const choice = event.choices?.[0], delta = choice?.delta ?? {};
      on_piece({text: delta.content ?? '', thought: delta.reasoning_content ?? '', timings: event.timings ?? null});
      if (choice?.finish_reason) reason = choice.finish_reason;
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ServerError) throw error;
    throw new ServerError(0, error instanceof SyntaxError ? 'the server sent something that is no answer' : 'the server went away');
  }
  if (reason === null) throw new ServerError(0, 'the server went away before the answer ended');
  return reason;
}
