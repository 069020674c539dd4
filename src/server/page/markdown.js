// SPDX-License-Identifier: Apache-2.0
// Markdown as models write it, made into elements. Text of a model only ever becomes text nodes: there
// is no way from it to markup. What is not finished yet (a fence without its end) is shown as far as it goes.

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) element[key] = value; else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// The first of these that matches at the earliest place wins.
const INLINE = [
  [/(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, (m) => make('code', {}, m[2].replace(/^ (.*) $/s, '$1'))],
  [/\\([\\`*_{}\[\]()#+\-.!|~>])/, (m) => document.createTextNode(m[1])],
  [/!?\[([^\[\]]*)\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/, (m) => link(m[2], m[1])],
  [/<(https?:\/\/[^\s<>]+)>/, (m) => link(m[1], m[1])],
  [/\bhttps?:\/\/[^\s<>"'`\]]*[^\s<>"'`\].,;:!?)*_]/, (m) => link(m[0], m[0])],
  [/\*\*(?=\S)([\s\S]*?\S)\*\*(?!\*)/, (m) => inline(make('strong'), m[1])],
  [/(?<![A-Za-z0-9_])__(?=\S)([\s\S]*?\S)__(?![A-Za-z0-9_])/, (m) => inline(make('strong'), m[1])],
  [/~~(?=\S)([\s\S]*?\S)~~/, (m) => inline(make('del'), m[1])],
  [/\*(?=[^\s*])((?:[^*]|\*\*[^*]+\*\*)*?[^\s*])\*(?!\*)/, (m) => inline(make('em'), m[1])],
  [/(?<![A-Za-z0-9_])_(?=[^\s_])([^_]*?[^\s_])_(?![A-Za-z0-9_])/, (m) => inline(make('em'), m[1])],
  [/ {2,}\n|\\\n/, () => make('br')],
];

// Only addresses that open a page or a letter; anything else (javascript:, data:) stays text.
function link(address, text) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return inline(make('span'), text || address);
  const element = make('a', {href: address, target: '_blank', rel: 'noopener noreferrer'});
  element.textContent = text || address;
  return element;
}

function inline(parent, text, depth = 0) {
  for (let pieces = 0; text !== '' && pieces < 5000; ++pieces) {
    let best = null, element = null;
    for (const [pattern, build] of INLINE) {
      const found = pattern.exec(text);
      if (found && (best === null || found.index < best.index)) [best, element] = [found, build];
    }
    if (best === null) break;
    parent.append(text.slice(0, best.index), element(best));
    text = text.slice(best.index + best[0].length);
  }
  parent.append(text);
  return parent;
}

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function cells(line) {
  const parts = line.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '').split(/(?<!\\)\|/);
  return parts.map((part) => part.trim().replace(/\\\|/g, '|'));
}

function starts_block(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || QUOTE.test(line);
}

function code_block(language, text) {
  const copy = make('button', {type: 'button', textContent: 'Copy'});
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = 'Copied';
    } catch {
      copy.textContent = 'Not allowed';
    }
    setTimeout(() => { copy.textContent = 'Copy'; }, 1500);
  });
  const code = make('code');
  code.textContent = text;
  return make('figure', {}, make('figcaption', {}, make('span', {textContent: language || 'text'}), copy),
    make('pre', {tabIndex: 0}, code));
}

function table(lines) {
  const sides = cells(lines[1]).map((cell) => (/^:-*:$/.test(cell) ? 'center' : /:$/.test(cell) ? 'right' : ''));
  const row = (line, name) => {
    const element = make('tr'), texts = cells(line);
    for (let i = 0; i < sides.length; ++i) {
      const cell = inline(make(name), texts[i] ?? '');
      if (sides[i]) cell.style.textAlign = sides[i];
      element.append(cell);
    }
    return element;
  };
  const body = make('tbody', {}, ...lines.slice(2).map((line) => row(line, 'td')));
  return make('div', {className: 'wide', tabIndex: 0}, make('table', {}, make('thead', {}, row(lines[0], 'th')), body));
}

// Items of one list: lines that belong to an item are indented at least as its text is.
function list(lines, depth) {
  const first = ITEM.exec(lines[0]), ordered = /\d/.test(first[2]);
  const element = make(ordered ? 'ol' : 'ul');
  if (ordered) element.start = parseInt(first[2], 10);
  let item = null, width = 0;
  const finish = () => {
    if (item === null) return;
    const entry = make('li');
    blocks(entry, item, depth + 1);
    // A single paragraph needs no room around it.
    if (entry.children.length > 0 && entry.firstElementChild.tagName === 'P') {
      entry.firstElementChild.replaceWith(...entry.firstElementChild.childNodes);
    }
    element.append(entry);
  };
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && (item === null || found[1].length < width)) {
      finish();
      width = found[1].length + found[2].length + 1;
      item = [found[3]];
    } else {
      item.push(line.slice(Math.min(width, line.search(/\S|$/))));
    }
  }
  finish();
  return element;
}

function blocks(parent, lines, depth = 0) {
  let i = 0;
  const take = (more) => {
    const start = i;
    while (++i < lines.length && more(lines[i], i));
    return lines.slice(start, i);
  };
  while (i < lines.length) {
    const line = lines[i];
    let found;
    if (line.trim() === '') {
      ++i;
    } else if ((found = FENCE.exec(line))) {
      const indent = found[1].length, mark = found[2];
      const text = take((next) => !(next.trim().startsWith(mark) && /^[`~]+$/.test(next.trim()))).slice(1);
      ++i;  // the closing fence
      parent.append(code_block(found[3], text.map((t) => t.slice(Math.min(indent, t.search(/\S|$/)))).join('\n')));
    } else if ((found = HEADING.exec(line))) {
      parent.append(inline(make('h' + Math.min(4, found[1].length)), found[2]));
      ++i;
    } else if (RULE.test(line)) {
      parent.append(make('hr'));
      ++i;
    } else if (QUOTE.test(line) && depth < 6) {
      const quoted = take((next) => QUOTE.test(next)).map((text) => QUOTE.exec(text)[1]);
      blocks(parent.appendChild(make('blockquote')), quoted, depth + 1);
    } else if (ITEM.test(line) && depth < 6) {
      const indent = ITEM.exec(line)[1].length;
      parent.append(list(take((next, at) => {
        if (next.trim() === '') return at + 1 < lines.length && (/^\s{2,}\S/.test(lines[at + 1]) || ITEM.test(lines[at + 1]));
        const inside = next.search(/\S/) > indent, another = ITEM.exec(next);
        return inside || (another !== null && another[1].length >= indent && !RULE.test(next)) || !starts_block(next) && lines[at - 1].trim() !== '';
      }), depth));
    } else if (line.includes('|') && i + 1 < lines.length && TABLE_RULE.test(lines[i + 1]) && cells(line).length === cells(lines[i + 1]).length) {
      parent.append(table(take((next, at) => next.includes('|') && next.trim() !== '')));
    } else {
      const text = take((next, at) => next.trim() !== '' && !starts_block(next) &&
        !(next.includes('|') && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1])));
      parent.append(inline(make('p'), text.join('\n').trim()));
    }
  }
  return parent;
}

function markdown(parent, text) {
  parent.replaceChildren();
  return blocks(parent, text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'));
}
