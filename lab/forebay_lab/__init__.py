"""The JupyterLab extension, built; its source is TypeScript. Nothing runs here: JupyterLab finds the files where the wheel lays them."""
