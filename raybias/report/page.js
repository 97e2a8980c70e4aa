// Sorts tables by a click on a header and filters long ones; a page is whole without it.
for (const table of document.querySelectorAll("main table")) {
  const body = table.tBodies[0], rows = [...body.rows];
  if (rows.length < 3) continue;
  const text = (row, place) => row.cells[place]?.textContent.trim().replaceAll("−", "-") ?? "";
  const number = (said) => /^[+-]?[\d,.]+/.test(said) ? parseFloat(said.replaceAll(",", "")) : NaN;
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.ariaSort === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.ariaSort = down ? "descending" : "ascending";
      const keys = new Map(rows.map((row) => [row, text(row, place)]));
      const numbers = [...keys.values()].every((said) => !said || !isNaN(number(said)));
      const order = (one, two) => numbers ? number(one) - number(two) : one.localeCompare(two);
      const compare = (one, two) => {
        const [a, b] = [keys.get(one), keys.get(two)];
        return !a || !b ? !a - !b : down ? order(b, a) : order(a, b);
      };
      body.append(...rows.toSorted(compare));
    });
  });
  if (rows.length < 12) continue;
  const label = document.createElement("label"), input = document.createElement("input");
  const shown = document.createElement("span");
  input.type = "search";
  shown.setAttribute("role", "status");
  label.className = "filter";
  label.append("Rows with ", input, " ", shown);
  table.parentElement.before(label);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    let count = 0;
    for (const row of rows) {
      const said = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => said.includes(word));
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length}`;
  });
}
