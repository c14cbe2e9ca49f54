"use strict";
(function () {
  var form = document.getElementById("filters");
  var rows = Array.prototype.slice.call(document.querySelectorAll("#objects tbody tr"));
  var said = document.getElementById("shown");
  function apply() {
    var words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    var status = form.elements.status.value;
    var kind = form.elements.kind.value;
    var found = form.elements.found.checked;
    var shown = 0;
    rows.forEach(function (row) {
      var text = row.textContent.toLowerCase();
      var is = words.every(function (word) { return text.indexOf(word) >= 0; }) &&
        (!status || row.dataset.status === status) &&
        (!kind || row.dataset.kind === kind) &&
        (!found || row.dataset.found === "yes");
      row.hidden = !is;
      if (is) { shown += 1; }
    });
    said.textContent = shown + " of " + rows.length + " objects shown";
  }
  form.addEventListener("input", apply);
  form.addEventListener("reset", function () { window.setTimeout(apply, 0); });
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.hidden = false;
  apply();
})();
