// SPDX-License-Identifier: Apache-2.0
// Conversations in the browser's own storage, each under a key of its own: what one tab writes never
// touches what another one writes. Where two tabs go on with the same conversation at once, the second to
// write keeps its words as a conversation of its own.

const PREFIX = 'kvspan.chat.';

function new_id() {
  // randomUUID needs https; this does not.
  return [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, '0')).join('');
}

function new_conversation() {
  return {id: new_id(), title: '', changed: Date.now(), revision: 0, messages: []};
}

function is_conversation(value) {
  return value !== null && typeof value === 'object' && typeof value.id === 'string' && Array.isArray(value.messages) &&
    value.messages.every((m) => m !== null && typeof m === 'object' && typeof m.role === 'string' && typeof m.content === 'string');
}

function read_conversation(id) {
  try {
    const value = JSON.parse(localStorage.getItem(PREFIX + id));
    return is_conversation(value) ? value : null;
  } catch {
    return null;  // written by something else
  }
}

function all_conversations() {
  const all = [];
  for (let i = 0; i < localStorage.length; ++i) {
    const key = localStorage.key(i);
    if (!key.startsWith(PREFIX)) continue;
    const value = read_conversation(key.slice(PREFIX.length));
    if (value !== null) all.push(value);
  }
  return all.sort((a, b) => b.changed - a.changed);
}

// Returns false where the browser has no room left. `touched`: it moves to the top of the list.
function write_conversation(conversation, touched = true) {
  const stored = read_conversation(conversation.id);
  if (stored !== null && stored.revision !== conversation.revision) {
    conversation.id = new_id();
    conversation.revision = 0;
    conversation.title = (conversation.title || 'Conversation') + ' (2)';
  }
  conversation.revision += 1;
  if (touched) conversation.changed = Date.now();
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    conversation.revision -= 1;
    return false;
  }
}

function remove_conversation(id) {
  localStorage.removeItem(PREFIX + id);
}
