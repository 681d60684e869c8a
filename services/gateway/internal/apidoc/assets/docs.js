"use strict";
// Renders /openapi.json (Swagger 2.0). Text goes in as text only, never as markup.
function element(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}
function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.replace("#/definitions/", "");
  if (schema.type === "array") return typeOf(schema.items) + "[]";
  if (schema.additionalProperties) return "map of " + typeOf(schema.additionalProperties);
  return schema.type + (schema.format ? " (" + schema.format + ")" : "") + (schema.enum ? ": " + schema.enum.join(" | ") : "");
}
function link(schema) {
  const target = schema && (schema.$ref || (schema.items && schema.items.$ref));
  const code = element("code", {}, typeOf(schema));
  return target ? element("a", { href: "#" + target.replace("#/definitions/", "") }, code) : code;
}
function table(rows) {
  return element("table", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((c) => element("td", {}, c)))));
}
function operation(path, method, op) {
  const body = element("div", {}, element("p", { class: "text" }, [op.summary, op.description].filter(Boolean).join("\n")));
  const parameters = op.parameters || [];
  if (parameters.length) {
    body.append(element("h4", {}, "Takes"), table(parameters.map((p) => [
      element("code", {}, p.name), p.in + (p.required ? ", required" : ""), link(p.schema || p), p.description || ""])));
  }
  body.append(element("h4", {}, "Answers"), table(Object.entries(op.responses).map(([status, r]) => [
    status, link(r.schema), r.description || ""])));
  return element("details", {}, element("summary", {}, element("span", { class: "method" }, method.toUpperCase()),
    element("code", {}, path)), body);
}
function shape(name, schema) {
  const required = schema.required || [];
  const rows = Object.entries(schema.properties || {}).map(([field, s]) => [
    element("code", {}, field), link(s) , (required.includes(field) ? "Always there. " : "") + (s.description || "")]);
  return element("details", { id: name }, element("summary", {}, element("code", {}, name)),
    element("div", {}, element("p", { class: "text" }, schema.description || ""), rows.length ? table(rows) : element("p", {}, typeOf(schema))));
}
fetch("/openapi.json").then((r) => r.json()).then((doc) => {
  document.getElementById("title").textContent = doc.info.title;
  document.getElementById("about").textContent = doc.info.description;
  const paths = document.getElementById("paths");
  for (const [path, methods] of Object.entries(doc.paths))
    for (const [method, op] of Object.entries(methods)) paths.append(operation(path, method, op));
  const shapes = document.getElementById("shapes");
  for (const [name, schema] of Object.entries(doc.definitions)) shapes.append(shape(name, schema));
  const open = () => { const d = document.getElementById(location.hash.slice(1)); if (d) { d.open = true; d.scrollIntoView(); } };
  addEventListener("hashchange", open);
  open();
}).catch((err) => { document.getElementById("about").textContent = "The description could not be loaded: " + err; });
