// SPDX-License-Identifier: Apache-2.0
// Small charts: what they show in words is in their label.

function svg(name, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const CHART_WIDTH = 240, CHART_HEIGHT = 64;

function frame(label, ...children) {
  return svg('svg', {viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label},
    svg('line', {class: 'base', x1: 0, x2: CHART_WIDTH, y1: CHART_HEIGHT - .5, y2: CHART_HEIGHT - .5}), ...children);
}

// `first` with the area below it, `second` dashed; the newest value is at the right edge.
function line_chart(place, label, first, second = []) {
  const most = Math.max(1e-9, ...first, ...second), count = Math.max(2, first.length, second.length);
  const points = (values) => values.map((value, i) => {
    const x = CHART_WIDTH * (count - values.length + i) / (count - 1);
    return `${x.toFixed(1)},${(CHART_HEIGHT - 1 - (CHART_HEIGHT - 4) * value / most).toFixed(1)}`;
  });
  const parts = [];
  if (first.length > 1) {
    const at = points(first), left = at[0].split(',')[0];
    parts.push(svg('polygon', {class: 'area', points: `${left},${CHART_HEIGHT} ${at.join(' ')} ${CHART_WIDTH},${CHART_HEIGHT}`}));
    parts.push(svg('polyline', {class: 'first', points: at.join(' '), 'vector-effect': 'non-scaling-stroke'}));
  }
  if (second.length > 1) parts.push(svg('polyline', {class: 'second', points: points(second).join(' '), 'vector-effect': 'non-scaling-stroke'}));
  place.replaceChildren(frame(label, ...parts));
}

function bar_chart(place, label, values) {
  const most = Math.max(1e-9, ...values), step = CHART_WIDTH / Math.max(1, values.length);
  place.replaceChildren(frame(label, ...values.map((value, i) => {
    const height = (CHART_HEIGHT - 4) * value / most;
    return svg('rect', {class: 'bar', x: (i * step + step * .1).toFixed(2), width: (step * .8).toFixed(2),
      y: (CHART_HEIGHT - 1 - height).toFixed(2), height: height.toFixed(2)});
  })));
}

function bytes_text(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (bytes >= 1024 && i < units.length - 1) { bytes /= 1024; ++i; }
  return `${bytes >= 100 || i === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[i]}`;
}
