package engine

// ShutdownReport says how the engine ended, as far as it has; complete when Shutdown has returned.
func (e *Engine) ShutdownReport() ShutdownReport { return e.b.shutdownReport() }
