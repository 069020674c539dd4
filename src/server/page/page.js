// SPDX-License-Identifier: Apache-2.0
// The page: what is shown, what is asked, what happens on each key.

const at = (id) => document.getElementById(id);
const SETTINGS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];

let here = new_conversation();  // the conversation that is shown
let asking = null;              // AbortController while an answer comes
let asked = null;               // the conversation that it belongs to
let leaving = false;            // the page is being left or loaded anew

// ---- settings

function settings() {
  try {
    const value = JSON.parse(localStorage.getItem('kvspan.settings'));
    return value !== null && typeof value === 'object' ? value : {};
  } catch {
    return {};
  }
}

function sampling() {
  const all = settings(), out = {};
  for (const name of SETTINGS) if (typeof all[name] === 'number') out[name] = all[name];
  return out;
}

function show_settings() {
  const all = settings();
  at('system').value = all.system ?? '';
  for (const name of SETTINGS) at(name).value = all[name] ?? '';
  at('key').value = sessionStorage.getItem('kvspan.key') ?? '';
  at('settings').showModal();
}

function save_settings() {
  const all = {system: at('system').value};
  for (const name of SETTINGS) if (at(name).value !== '' && !Number.isNaN(at(name).valueAsNumber)) all[name] = at(name).valueAsNumber;
  localStorage.setItem('kvspan.settings', JSON.stringify(all));
  sessionStorage.setItem('kvspan.key', at('key').value);
  look();
}

// ---- the list

function show_list() {
  const items = all_conversations().map((conversation) => {
    const title = conversation.title || 'Conversation';
    const open = make('button', {className: 'open', textContent: title, title});
    open.addEventListener('click', () => show(read_conversation(conversation.id) ?? new_conversation()));
    const remove = make('button', {className: 'remove', textContent: '×', title: 'Delete', 'aria-label': `Delete ${title}`});
    remove.addEventListener('click', () => {
      if (!confirm(`Delete “${title}”?`)) return;
      if (asked?.id === conversation.id) asking?.abort();
      remove_conversation(conversation.id);
      if (here.id === conversation.id) show(new_conversation()); else show_list();
    });
    const item = make('li', {className: conversation.id === here.id ? 'here' : ''}, open, remove);
    if (conversation.id === here.id) open.setAttribute('aria-current', 'true');
    return item;
  });
  at('conversations').replaceChildren(...items);
}

function keep(conversation, touched = true) {
  if (!write_conversation(conversation, touched)) tell('The browser has no room left: this conversation is not kept. Delete an older one.');
  if (conversation === here) location.replace('#' + conversation.id);
  show_list();
}

// ---- messages

function message_element(message, last) {
  const body = make('div', {className: 'body'});
  const element = make('article', {className: 'message ' + message.role});
  if (message.role === 'user') {
    body.textContent = message.content;
    element.append(make('span', {className: 'hidden', textContent: 'You: '}), body);
    const edit = make('button', {type: 'button', textContent: 'Edit'});
    edit.addEventListener('click', () => edit_message(message));
    element.append(make('div', {className: 'tools'}, edit));
    return element;
  }
  element.append(make('span', {className: 'hidden', textContent: 'Answer: '}));
  if (message.thought) {
    element.append(make('details', {className: 'thoughts'}, make('summary', {textContent: 'Thoughts'}), make('div', {textContent: message.thought})));
  }
  markdown(body, message.content);
  element.append(body);
  const comes = asking !== null && asked === here && last;
  if (comes) {
    (body.lastElementChild && /^(P|H[1-4])$/.test(body.lastElementChild.tagName) ? body.lastElementChild : body).classList.add('waiting');
    return element;
  }
  const tools = make('div', {className: 'tools'});
  if (message.wrong) tools.append(make('span', {className: 'wrong', textContent: message.wrong}));
  else if (message.end === 'stopped') tools.append(make('span', {textContent: 'Stopped.'}));
  else if (message.end === 'length') tools.append(make('span', {textContent: 'Ended by the limit of tokens.'}));
  else if (message.end === undefined) tools.append(make('span', {textContent: 'Interrupted.'}));
  if (last) {
    const again = make('button', {type: 'button', className: 'again', textContent: message.wrong || !message.content ? 'Try again' : 'Regenerate'});
    again.addEventListener('click', regenerate);
    tools.append(again);
  }
  const copy = make('button', {type: 'button', textContent: 'Copy'});
  copy.addEventListener('click', () => navigator.clipboard?.writeText(message.content).then(() => { copy.textContent = 'Copied'; }));
  if (message.content) tools.append(copy);
  if (message.speed) tools.append(make('span', {className: 'long', textContent: message.speed}));
  element.append(tools);
  return element;
}

function at_bottom() {
  const box = at('messages');
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}

function show_messages(follow = true) {
  const stay = follow && at_bottom();
  const elements = here.messages.map((message, i) => message_element(message, i === here.messages.length - 1));
  if (elements.length === 0) elements.push(make('p', {className: 'empty', textContent: 'Ask something. Conversations stay in this browser.'}));
  at('messages').replaceChildren(...elements);
  if (stay) at('messages').scrollTop = at('messages').scrollHeight;
}

// Only the answer that is coming, as often as it can be drawn in a quarter of the time.
let next_draw = 0, draw_waits = false;
function show_last() {
  if (draw_waits || asked !== here) return;
  draw_waits = true;
  setTimeout(() => requestAnimationFrame(() => {
    draw_waits = false;
    if (asked !== here || asking === null) return;
    const start = performance.now(), stay = at_bottom();
    const old = at('messages').lastElementChild;
    const element = message_element(here.messages.at(-1), true);
    const thoughts = old?.querySelector('details');
    if (thoughts?.open) element.querySelector('details')?.setAttribute('open', '');
    old?.replaceWith(element);
    if (stay) at('messages').scrollTop = at('messages').scrollHeight;
    next_draw = performance.now() + Math.max(40, 3 * (performance.now() - start));
  }), Math.max(0, next_draw - performance.now()));
}

function show(conversation) {
  here = conversation;
  if (here.messages.length > 0) location.replace('#' + here.id); else history.replaceState(null, '', location.pathname + location.search);
  show_messages(false);
  at('messages').scrollTop = at('messages').scrollHeight;
  show_list();
  show_buttons();
  if (matchMedia('(max-width: 60rem)').matches) open_panel('list', false);
}

function show_buttons() {
  const comes = asking !== null;
  at('send').hidden = comes;
  at('stop').hidden = !comes;
}

// ---- asking

async function answer(conversation) {
  const message = {role: 'assistant', content: ''};
  const system = settings().system?.trim();
  const messages = [...(system ? [{role: 'system', content: system}] : []),
    ...conversation.messages.map(({role, content}) => ({role, content}))];
  conversation.messages.push(message);
  asking = new AbortController();
  asked = conversation;
  show_buttons();
  if (here === conversation) { show_messages(); at('messages').scrollTop = at('messages').scrollHeight; }
  keep(conversation);
  let kept = performance.now(), pieces = 0, started = 0;
  try {
    const end = await ask_server(messages, sampling(), asking.signal, ({text, thought, timings}) => {
      if (started === 0 && (text || thought)) started = performance.now();
      message.content += text;
      if (thought) message.thought = (message.thought ?? '') + thought;
      if (text || thought) ++pieces;
      const seconds = (performance.now() - started) / 1000;
      const speed = timings?.predicted_per_second ?? (pieces > 3 && seconds > .2 ? pieces / seconds : null);
      if (speed !== null && Number.isFinite(speed)) note_speed(speed, timings);
      if (timings?.predicted_n) message.speed = `${timings.predicted_n} tokens, ${speed.toFixed(1)} a second`;
      show_last();
      // So that a closed tab loses a second at most.
      if (performance.now() - kept > 1000) { write_conversation(conversation, false); kept = performance.now(); }
    });
    message.end = end;
  } catch (error) {
    if (leaving) return;
    if (error.name === 'AbortError') {
      message.end = 'stopped';
    } else {
      message.end = 'wrong';
      message.wrong = sentence(error);
      if (error.status === 401) show_settings();
      if (error.status === 0) look();
    }
  } finally {
    asking = asked = null;
    if (read_conversation(conversation.id) !== null || here === conversation) keep(conversation, false);
    show_buttons();
    if (here === conversation) show_messages();
  }
}

function sentence(error) {
  const text = String(error.message || error);
  if (error.status === 401) return 'The server asks for an API key: set it in the settings.';
  if (error.status === 429) return `The server has no room now: ${text}`;
  if (error.status === 503) return `Not ready: ${text}`;
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.');
}

function send() {
  const text = at('question').value.trim();
  if (text === '' || asking !== null) return;
  at('question').value = '';
  sessionStorage.removeItem('kvspan.draft');
  fit_question();
  if (here.title === '') here.title = text.replace(/\s+/g, ' ').slice(0, 60);
  here.messages.push({role: 'user', content: text});
  answer(here);
}

function regenerate() {
  if (asking !== null) return;
  while (here.messages.length > 0 && here.messages.at(-1).role === 'assistant') here.messages.pop();
  if (here.messages.length > 0) answer(here);
}

// The question goes back to where it was written; it and what followed leave when it is sent again.
function edit_message(message) {
  if (asking !== null) return;
  const index = here.messages.indexOf(message);
  if (index < 0) return;
  at('question').value = message.content;
  here.messages.length = index;
  keep(here);
  show_messages();
  fit_question();
  at('question').focus();
}

function fit_question() {
  const box = at('question');
  box.style.height = 'auto';
  box.style.height = box.scrollHeight + 2 + 'px';
}

// ---- the server's numbers

const LOOK_MS = 2000, KEPT = 90;
const history_of = {memory: [], full: [], speed: [], hits: [], misses: []};
let was_away = false, has_kv = true;

function remember(name, value) {
  history_of[name].push(value);
  if (history_of[name].length > KEPT) history_of[name].shift();
}

function tell(text) {
  at('away').textContent = text;
  at('away').hidden = text === '';
}

function note_speed(speed, timings) {
  remember('speed', speed);
  at('speed-now').textContent = `${speed.toFixed(1)} tokens a second`;
  if (timings?.prompt_per_second) {
    at('speed-note').textContent = `Prompt: ${timings.prompt_n} tokens read at ${Math.round(timings.prompt_per_second)} a second` +
      (timings.cache_n ? `, ${timings.cache_n} from the cache.` : '.');
  }
  line_chart(at('speed-chart'), `Tokens a second, now ${speed.toFixed(1)}`, history_of.speed);
}

function show_kv(kv) {
  const number = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : 0);
  const name = String(kv.model ?? '').split('/').pop().replace(/\.gguf$/, '');
  at('model').textContent = [name, kv.recipe].filter(Boolean).join(' · ');
  at('model').title = [kv.model, kv.recipe].filter(Boolean).join(' · ');
  const bytes = number(kv.bytes?.total ?? kv.bytes), full = number(kv.bytes?.f16 ?? kv.f16_bytes);
  const budget = number(kv.budget?.bytes ?? kv.budget);
  remember('memory', bytes);
  remember('full', full);
  const against_f16 = full >= bytes ? `${(full / bytes).toFixed(1)}× less` : `${(bytes / full).toFixed(1)}× of f16`;
  at('memory-now').textContent = bytes_text(bytes) + (full > 0 && bytes > 0 ? ` · ${against_f16}` : '');
  const tokens = (kv.sequences ?? []).reduce((sum, sequence) => sum + number(sequence.tokens), 0);
  at('memory-note').textContent = `${tokens.toLocaleString('en')} tokens; f16 would take ${bytes_text(full)}` +
    (budget > 0 ? `; budget ${bytes_text(budget)}` : '') + '.';
  line_chart(at('memory-chart'), `KV memory ${bytes_text(bytes)}, in f16 ${bytes_text(full)}`, history_of.memory, history_of.full);
  const layers = (kv.layers ?? []).map((layer) => number(layer.bytes));
  at('layers-section').hidden = layers.length === 0 || bytes === 0;
  if (layers.length > 0) bar_chart(at('layers-chart'), `Bytes of ${layers.length} layers, most ${bytes_text(Math.max(...layers))}`, layers);
  const store = kv.store;
  at('store-section').hidden = !store;
  if (!store) return;
  const hits = number(store.hits), misses = number(store.misses);
  remember('hits', hits);
  remember('misses', misses);
  at('store-now').textContent = `${hits} of ${hits + misses} prompts found`;
  at('store-note').textContent = `${bytes_text(number(store.bytes))} kept; loading took ${Math.round(number(store.load_ms))} ms in all, saving ${Math.round(number(store.save_ms))} ms.`;
  line_chart(at('store-chart'), `Prefix store: ${hits} hits, ${misses} misses`, history_of.hits, history_of.misses);
}

// A server that does not tell about its caches may still count tokens.
async function look_at_metrics() {
  at('memory-note').textContent = 'This server does not tell.';
  at('store-section').hidden = true;
  const response = await fetch('metrics', {headers: with_key()});
  if (!response.ok) return;
  const found = /^\S*predicted_tokens_seconds(?:\{[^}]*\})?\s+([\d.eE+-]+)/m.exec(await response.text());
  if (found && asking === null) at('speed-now').textContent = `${Number(found[1]).toFixed(1)} tokens a second`;
}

let looking = false;
async function look() {
  if (looking) return;
  looking = true;
  try {
    const response = await fetch('kv', {headers: with_key(), cache: 'no-store'});
    if (response.status === 503) {
      tell('The server is loading its model.');
    } else if (response.status === 401) {
      tell('The server asks for an API key: set it in the settings.');
    } else {
      if (was_away || !at('away').hidden) tell('');
      was_away = false;
      if (response.ok && (response.headers.get('content-type') ?? '').includes('json')) show_kv(await response.json());
      else await look_at_metrics();
    }
  } catch {
    was_away = true;
    tell('The server does not answer. What you write is kept; this page tries again by itself.');
  } finally {
    looking = false;
  }
}

// ---- keys, panels, other tabs

function open_panel(name, open) {
  at('rooms').classList.toggle('no-' + name, !open);
  at('show-' + name).setAttribute('aria-expanded', String(open));
}

function toggle_panel(name) {
  const open = at('rooms').classList.contains('no-' + name);
  const narrow = matchMedia('(max-width: 60rem)').matches;
  if (open && narrow) open_panel(name === 'list' ? 'memory' : 'list', false);
  open_panel(name, open);
  if (open && narrow) at(name).querySelector('button, [tabindex]')?.focus();
}

at('ask').addEventListener('submit', (event) => { event.preventDefault(); send(); });
at('stop').addEventListener('click', () => { asking?.abort(); at('question').focus(); });
at('new').addEventListener('click', () => { show(new_conversation()); at('question').focus(); });
at('question').addEventListener('input', () => { sessionStorage.setItem('kvspan.draft', at('question').value); fit_question(); });
at('question').addEventListener('keydown', (event) => {
  // Not while an input method is composing a word.
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !at('settings').open) {
    if (asking !== null) asking.abort();
    else if (matchMedia('(max-width: 60rem)').matches) { open_panel('list', false); open_panel('memory', false); }
  } else if (event.altKey && event.code === 'KeyN') {
    event.preventDefault();
    show(new_conversation());
    at('question').focus();
  }
});
at('show-list').addEventListener('click', () => toggle_panel('list'));
at('show-memory').addEventListener('click', () => toggle_panel('memory'));
at('show-settings').addEventListener('click', show_settings);
at('reset').addEventListener('click', () => { for (const name of ['system', ...SETTINGS]) at(name).value = ''; });
at('settings').addEventListener('close', () => { if (at('settings').returnValue === 'save') save_settings(); at('settings').returnValue = ''; });
addEventListener('storage', (event) => {
  if (event.key !== null && !event.key.startsWith(PREFIX)) return;
  // The conversation that is shown went on, or away, in another tab.
  if (asked !== here && (event.key === null || event.key === PREFIX + here.id) && here.messages.length > 0) {
    here = read_conversation(here.id) ?? new_conversation();
    show_messages();
  }
  show_list();
});
// An answer that ends because the page is left was interrupted: nothing went wrong.
addEventListener('pagehide', () => { leaving = true; if (asked !== null) write_conversation(asked, false); });
addEventListener('pageshow', () => { leaving = false; });
addEventListener('hashchange', () => {
  const id = location.hash.slice(1);
  if (id !== '' && id !== here.id) show(read_conversation(id) ?? new_conversation());
});
document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
setInterval(() => { if (!document.hidden) look(); }, LOOK_MS);

const wide = !matchMedia('(max-width: 60rem)').matches;
open_panel('list', wide);
open_panel('memory', wide);
at('question').value = sessionStorage.getItem('kvspan.draft') ?? '';
fit_question();
show(read_conversation(location.hash.slice(1)) ?? new_conversation());
line_chart(at('memory-chart'), 'KV memory', []);
line_chart(at('speed-chart'), 'Tokens a second', []);
line_chart(at('store-chart'), 'Prefix store', []);
look();
