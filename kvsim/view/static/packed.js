"use strict";
// Unpacks tables of whole numbers, as packing.py packs them; no number loses a digit.

(() => {
  const SIGNED = { 1: Int8Array, 2: Int16Array, 4: Int32Array, 8: BigInt64Array };

  async function inflated(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Planes of bytes, the lowest first, as the signed integers that they were. Every browser's machine is little-endian.
  function joined(planes, width) {
    const bytes = new Uint8Array(planes.length);
    const count = planes.length / width;
    for (let plane = 0; plane < width; plane++) {
      for (let i = 0, at = plane; i < count; i++, at += width) bytes[at] = planes[plane * count + i];
    }
    return new SIGNED[width](bytes.buffer);
  }

  // Numbers where they are exact, else BigInts.
  function column(packed, rows, planes) {
    const first = BigInt(packed.first);
    const values = packed.exact ? new Float64Array(rows) : new BigInt64Array(rows);
    if (!planes) return values.fill(packed.exact ? Number(first) : first);
    const steps = joined(planes, packed.width);
    if (packed.exact) {
      let value = Number(first);
      values[0] = value;
      for (let i = 1; i < rows; i++) values[i] = value += Number(steps[i - 1]);
    } else {
      let value = first;
      values[0] = value;
      for (let i = 1; i < rows; i++) values[i] = value = BigInt.asIntN(64, value + BigInt(steps[i - 1]));
    }
    return values;
  }

  async function unpacked(array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.length); // Bokeh's own arrays have no parts
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    const tables = {};
    let at = 4 + length;
    for (const [name, table] of Object.entries(header.tables)) {
      const columns = {};
      for (const [key, packed] of Object.entries(table.columns)) {
        // Each waits for its bytes, so a page is not held up by all of them.
        const planes = packed.bytes ? await inflated(bytes.subarray(at, at + packed.bytes)) : null;
        at += packed.bytes ?? 0;
        columns[key] = "same" in packed ? columns[packed.same] : column(packed, table.rows, planes);
      }
      tables[name] = { rows: table.rows, columns };
    }
    return { note: header.note, ...tables };
  }

  // The last row of which `values`, in order, are `value` or less; -1 before the first. Exact, also between Number and
  // BigInt.
  function rowThatHolds(values, value) {
    let low = 0;
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  window.kvsimPacked = { unpacked, rowThatHolds };
})();
