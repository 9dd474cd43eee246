"""npu_bridge.scoped_graph_manager.scoped_graph_manager.ScopedGraphManager."""
