package engine

// ShutdownReport says how the engine ended, as far as it has; complete when Shutdown has returned.
func (e *Engine) ShutdownReport() ShutdownReport { return e.b.shutdownReport() }

func (c *core) shutdownReport() ShutdownReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ShutdownReport{Phases: append([]ShutdownPhase(nil), c.report.Phases...)}
}
