"use strict";
// Draws the charts in the colours of the page, and again if its colours change.
const dark = matchMedia("(prefers-color-scheme: dark)");

function drawCharts() {
  document.documentElement.classList.toggle("dark", dark.matches); // for DataTables
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  for (const place of document.querySelectorAll(".chart")) {
    const { data, layout } = JSON.parse(place.nextElementSibling.textContent);
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--faint"), automargin: true };
    Plotly.react(place, data, {
      height: 340, margin: { t: 30, r: 10, b: 45, l: 45 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--faint"), activecolor: colour("--ink") },
      font: { color: colour("--ink"), family: "system-ui, sans-serif" },
      colorway: dark.matches ? ["#56B4E9", "#E69F00", "#2fbf94", "#CC79A7", "#D55E00", "#b9a6e8"]
        : ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"],
      legend: { orientation: "h", y: 1, yanchor: "bottom" },
      ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
    }, {
      responsive: true, displaylogo: false, displayModeBar: innerWidth < 600 ? false : "hover",
      // Without the button that uploads a chart.
      modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
    });
  }
}

drawCharts();
dark.addEventListener("change", drawCharts);
// A link into a folded section opens it.
const openTarget = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", openTarget);
openTarget();
