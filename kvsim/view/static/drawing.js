"use strict";
// Which rows of a run are drawn over time, and as what. Nothing is computed here but places on the screen and shares.

(() => {
  // Rows `first ... last`; if they are many, of each part of `x`, from `start` on and `wide`, the first and the last
  // row, and of each level the first with the most and the first with the least.
  function chosen(x, first, last, levels, start, wide) {
    const rows = [];
    if (wide <= 0) {
      for (let row = first; row <= last; row++) rows.push(row);
      return rows;
    }
    const num = levels.length;
    const taken = new Int32Array(2 + 2 * num); // most and least of each level, then the first row and the last
    function close(end) {
      taken[2 * num + 1] = end;
      taken.sort();
      taken.forEach((row, i) => (i && row === taken[i - 1] ? null : rows.push(row)));
    }
    let edge = -Infinity;
    for (let row = first; row <= last; row++) {
      if (x[row] >= edge) {
        if (row > first) close(row - 1);
        taken.fill(row);
        edge = start + (Math.floor((x[row] - start) / wide) + 1) * wide;
        continue;
      }
      for (let i = 0; i < num; i++) {
        const level = levels[i];
        if (level[row] > level[taken[i]]) taken[i] = row;
        if (level[row] < level[taken[num + i]]) taken[num + i] = row;
      }
    }
    if (last >= first) close(last);
    return rows;
  }

  // Some of the values as numbers, to draw them.
  function drawable(values, rows, size) {
    const numbers = new Float64Array(rows.length);
    for (let i = 0; i < rows.length; i++) numbers[i] = Number(values[rows[i]]) / size;
    return numbers;
  }

  const percentOf = (part, whole) => (100 * Number(part)) / Number(whole);

  // Of each row, in percent; 0 where there is nothing of which it could be a share.
  function shares(parts, wholes) {
    const values = new Float64Array(parts.length);
    for (let row = 0; row < values.length; row++) values[row] = parts[row] ? percentOf(parts[row], wholes[row]) : 0;
    return values;
  }

  // What some rows of a level do not exceed for 99 % of their time, and the most.
  function heights(x, level, rows) {
    const lasting = rows.map((row, i) => (i + 1 < rows.length ? x[rows[i + 1]] - x[row] : 0));
    const order = rows.map((_, i) => i).sort((one, other) => level[rows[one]] - level[rows[other]]);
    let left = 0.99 * lasting.reduce((sum, time) => sum + time, 0);
    const usual = order.find((i) => (left -= lasting[i]) <= 0) ?? order.at(-1);
    return { usual: level[rows[usual]] ?? 0, most: level[rows[order.at(-1)]] ?? 0 };
  }

  window.kvsimDrawing = { chosen, drawable, heights, percentOf, shares };
})();
