// npm ci && npm run build: writes the bundle and its licences into the package.
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const assets = fileURLToPath(new URL("../../src/fedpbc/report/assets/", import.meta.url));
const version = JSON.parse(readFileSync("node_modules/echarts/package.json")).version;
await build({
  entryPoints: ["charts.js"],
  outfile: assets + "echarts.min.js",
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "echarts",
  target: "es2020",
  charset: "utf8",
  legalComments: "none",
  define: { "process.env.NODE_ENV": '"production"' },
  banner: { js: `/* Apache ECharts ${version}, in part; Apache-2.0, see LICENSE-echarts. Built by tools/echarts. */` },
});
// In a page it stands inside a script element, which this would end.
const made = assets + "echarts.min.js";
writeFileSync(made, readFileSync(made, "utf8").replaceAll("</script", "<\\/script"));
copyFileSync("node_modules/echarts/LICENSE", assets + "LICENSE-echarts");
copyFileSync("node_modules/echarts/NOTICE", assets + "NOTICE-echarts");
copyFileSync("node_modules/zrender/LICENSE", assets + "LICENSE-zrender");
