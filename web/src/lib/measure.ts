// Measures the width of a text with a canvas, once for each text and font.

const known = new Map<string, number>();
let canvas: CanvasRenderingContext2D | null | undefined;

export function widthOf(text: string, font: string): number {
  const key = `${font}|${text}`;
  let width = known.get(key);
  if (width === undefined) {
    canvas ??= document.createElement('canvas').getContext('2d');
    if (canvas) canvas.font = font;
    width = canvas ? canvas.measureText(text).width : 8 * text.length;
    if (known.size > 20_000) known.clear();
    known.set(key, width);
  }
  return width;
}
