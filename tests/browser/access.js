// What everyone needs of the page, measured in it: contrast, names, room.
(() => {
  const rgb = (text) => {
    const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    const layers = [];
    for (let each = element; each !== null; each = each.parentElement) {
      layers.push(rgb(getComputedStyle(each).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((below, [r, g, b, a]) => [r, g, b].map((value, i) => value * a + below[i] * (1 - a)), [255, 255, 255]);
  };
  window.lowContrast = () =>
    [...document.querySelectorAll("body *")]
      .filter((element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()))
      .filter((element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest("canvas, option, noscript"))
      .map((element) => {
        const [a, b] = [luminance(rgb(getComputedStyle(element).color)), luminance(ground(element))];
        return [element.className || element.tagName, element.textContent.trim().slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
      })
      .filter(([, , contrast]) => contrast < 4.5);
  window.nameless = () =>
    [...document.querySelectorAll("a, button, input, select, [role=img], [role=region], [role=group]")]
      .filter((element) => {
        const by = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
        const labels = [...(element.labels ?? [])].map((label) => label.textContent).join("");
        return !(element.getAttribute("aria-label") || by || labels || element.textContent || "").trim();
      })
      .map((element) => element.outerHTML.slice(0, 100));
})();
