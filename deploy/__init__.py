"""Starting and watching servers; container, chart, router, dashboards."""
