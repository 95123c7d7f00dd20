// What the reports draw with; see src/fedpbc/report/assets/page.js.
import { BarChart, CustomChart, HeatmapChart, LineChart } from "echarts/charts";
import { AriaComponent, GridComponent, TooltipComponent, VisualMapContinuousComponent } from "echarts/components";
import { init, use } from "echarts/core";
import { SVGRenderer } from "echarts/renderers";

use([
  AriaComponent, BarChart, CustomChart, GridComponent, HeatmapChart, LineChart, SVGRenderer,
  TooltipComponent, VisualMapContinuousComponent,
]);
export { init };
