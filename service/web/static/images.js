// Pictures of the next question: dropped anywhere, pasted, chosen, or by address; a PDF where the service takes files.

import { call, Refused } from "./api.js";
import { $, announce, button, make, showError } from "./dom.js";

export class Attachments {
  constructor() {
    this.images = [];
    $("choose").onclick = () => $("files").click();
    $("files").onchange = () => {
      this.addFiles($("files").files);
      $("files").value = "";
    };
    $("add-url").onclick = () => this.addUrl();
    $("url").onkeydown = (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.addUrl();
      }
    };
    document.addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length) {
        event.preventDefault();
        this.addFiles(event.clipboardData.files);
      }
    });
    this.acceptDrops();
  }

  // Anywhere on the page: a picture that is let go beside a box must not replace the page.
  acceptDrops() {
    const over = (is) => document.body.classList.toggle("over", is);
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      over(true);
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) over(false);
    });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      over(false);
      const link = event.dataTransfer
        .getData("text/uri-list")
        .split("\n")
        .find((line) => line && !line.startsWith("#"));
      if (event.dataTransfer.files.length) this.addFiles(event.dataTransfer.files);
      else if (link) this.add({ url: link.trim(), name: link.trim() });
    });
  }

  set(images) {
    this.images = [...images];
    this.show();
  }

  add(image) {
    this.images.push(image);
    this.show();
    announce(`${image.name} added: ${this.images.length} in all`);
  }

  // True where the field holds nothing or an address that was taken.
  addUrl() {
    const text = $("url").value.trim();
    if (!text) return true;
    if (!/^(https?:|data:image\/)/i.test(text) || !URL.canParse(text)) {
      showError($("attach-error"), "That is no address of a picture: it begins with http:// or https://.", $("url"));
      $("url").focus();
      return false;
    }
    showError($("attach-error"), "", $("url"));
    this.add({ url: text, name: text.startsWith("data:") ? "pasted picture" : text });
    $("url").value = "";
    return true;
  }

  async addFiles(files) {
    showError($("attach-error"), "");
    for (const file of files) {
      if (file.type === "application/pdf") await this.addPdf(file);
      else if (file.type.startsWith("image/")) this.add({ url: await dataUrl(file), name: file.name });
      else showError($("attach-error"), `${file.name} is no picture.`);
    }
  }

  async addPdf(file) {
    const form = new FormData();
    form.append("purpose", "user_data");
    form.append("file", file);
    try {
      const stored = await (await call("POST", "/v1/files", form)).json();
      this.add({ file: stored.id, pages: stored.pages, name: file.name });
    } catch (error) {
      const takesNone = error instanceof Refused && error.status === 404;
      showError($("attach-error"), `${file.name}: ${takesNone ? "this service takes no PDF files." : error.message}`);
    }
  }

  move(from, to) {
    this.images.splice(to, 0, this.images.splice(from, 1)[0]);
    this.show();
  }

  show() {
    $("attachments").replaceChildren(
      ...this.images.map((image, i) =>
        make(
          "li",
          {},
          thumbnail(image, i),
          make(
            "span",
            { className: "tools" },
            button("←", () => this.move(i, i - 1), { ariaLabel: `Move image ${i + 1} forward`, disabled: i === 0 }),
            button(
              "✕",
              () => {
                this.images.splice(i, 1);
                this.show();
                $("choose").focus();
              },
              { ariaLabel: `Remove image ${i + 1}` },
            ),
          ),
        ),
      ),
    );
  }
}

export function thumbnail(image, i) {
  const label = `Image ${i + 1}`;
  const shown = image.file
    ? make("span", { className: "document", textContent: "PDF", title: image.name })
    : make("img", { src: image.url, alt: label, referrerPolicy: "no-referrer" });
  return make(
    "span",
    { className: "thumb" },
    make("span", { className: "number", textContent: i + 1, ariaHidden: "true" }),
    shown,
  );
}

// Each image that a request for `turns` holds, in order: a PDF is its pages.
export const imagesOf = (turns) =>
  turns
    .flatMap((turn) => turn.images ?? [])
    .flatMap((image) => (image.file ? Array(image.pages).fill(image) : [image]));

export const contentPart = (image) =>
  image.file ? { type: "file", file: { file_id: image.file } } : { type: "image_url", image_url: { url: image.url } };

const dataUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
