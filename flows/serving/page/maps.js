// Gray pictures as layers over a picture: the spotlight of a word, the change map, the mask.

export const source = (png) => `data:image/png;base64,${png}`;

export async function values(png) {
  const picture = new Image();
  picture.src = source(png);
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  const { data, width, height } = context.getImageData(0, 0, picture.width, picture.height);
  return { width, height, at: Float32Array.from({ length: width * height }, (_, place) => data[4 * place] / 255) };
}

function paint(canvas, map, colour, strength) {
  canvas.width = map.width;
  canvas.height = map.height;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(map.width, map.height);
  map.at.forEach((value, place) => picture.data.set([...colour, 255 * strength(value, place)], 4 * place));
  context.putImageData(picture, 0, 0);
}

// Everything the model did not look at goes dark.
export const spotlight = (canvas, map) => paint(canvas, map, [12, 16, 20], (value) => 0.78 * (1 - value) ** 1.4);
export const heat = (canvas, map, colour) => paint(canvas, map, colour, (value) => value);
// Its edge, and so faint inside that the colours below stay what they are.
export function area(canvas, map, colour) {
  const { width, at } = map;
  const inside = (place) => at[place] > 0.5;
  const beside = (place) => [place % width ? place - 1 : -1, (place + 1) % width ? place + 1 : -1, place - width, place + width];
  paint(canvas, map, colour, (_, place) => (inside(place) ? (beside(place).every(inside) ? 0.25 : 0.9) : 0));
}
