"use strict";
// Draws the figures in the page's own colours, now and whenever these change.
(() => {
  const root = document.documentElement;
  let figures = JSON.parse(document.getElementById("figures").textContent);
  let charts = [...document.querySelectorAll(".chart")];
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
    toImageButtonOptions: { format: "svg", filename: document.title },
  };

  const colours = () => {
    const style = getComputedStyle(document.querySelector("section"));
    const soft = getComputedStyle(document.querySelector(".soft, figcaption")).color;
    return { ink: style.color, soft, card: style.backgroundColor, font: style.fontFamily };
  };

  const dressed = (layout) => {
    const { ink, soft, card, font } = colours();
    return {
      ...layout,
      autosize: true,
      uirevision: "same",
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, family: font, size: 12 },
      modebar: { bgcolor: card, color: soft, activecolor: ink },
      hoverlabel: { ...layout.hoverlabel, bgcolor: card, font: { color: ink, family: font } },
    };
  };

  const draw = () =>
    Promise.all(
      charts.map((chart) => {
        const { data, layout } = figures[chart.id];
        chart.style.setProperty("--height", `${layout.height}px`); // while Plotly fits it, too
        return Plotly.react(chart, data, dressed(layout), config);
      }),
    );

  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  const show = (theme) => {
    root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    return draw();
  };
  button.addEventListener("click", () =>
    show(themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length]),
  );
  document.getElementById("print").addEventListener("click", () => window.print());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // Paper has its own width and is always light.
  const fit = () => Promise.all([draw(), ...charts.map((chart) => Plotly.Plots.resize(chart))]);
  matchMedia("print").addEventListener("change", fit);
  addEventListener("beforeprint", fit);
  addEventListener("afterprint", fit);

  // For a page that follows its run: figures that changed, and charts that came or went.
  window.hadar = {
    redraw: (changed) => {
      figures = changed;
      charts = [...document.querySelectorAll(".chart")];
      return draw();
    },
  };

  show("auto").then(() => (root.dataset.drawn = String(charts.length)));
})();
