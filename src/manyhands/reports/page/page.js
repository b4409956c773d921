"use strict";
(() => {
  const drawings = JSON.parse(document.getElementById("charts").textContent);
  const plots = [...document.querySelectorAll("[data-chart]")];
  const config = { responsive: true, displayModeBar: false, showTips: false };
  for (const plot of plots) {
    const { data, layout } = drawings[Number(plot.dataset.chart)];
    // On a phone a label of an axis would take the room of what it labels.
    if (innerWidth < 480) layout.font.size = 11;
    Plotly.newPlot(plot, data, layout, config);
  }

  // A strategy that is switched off is off in every chart of its section that draws it as a line.
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const plot of button.closest("section").querySelectorAll("[data-chart]")) {
        const traces = [...plot.data.keys()].filter(
          (number) => plot.data[number].meta === button.dataset.strategy,
        );
        if (traces.length) Plotly.restyle(plot, { visible: shown }, traces);
      }
    });
  }

  // A sheet of paper is narrower than most windows, and its charts are drawn before it is cut.
  addEventListener("beforeprint", () => {
    for (const plot of plots) {
      const { height } = drawings[Number(plot.dataset.chart)].layout;
      const wide = plot.closest(".wide") !== null;
      Plotly.relayout(plot, {
        autosize: false, width: wide ? 690 : 335, height: Math.min(height, 260), "font.size": 10,
      });
    }
  });
  addEventListener("afterprint", () => {
    for (const plot of plots) {
      const { height } = drawings[Number(plot.dataset.chart)].layout;
      Plotly.relayout(plot, { autosize: true, width: undefined, height, "font.size": 13 });
    }
  });
})();
