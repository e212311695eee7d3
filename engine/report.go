package engine

import "github.com/enginetest/enginetest/llm"

// ShutdownReport says how the engine ended, as far as it has; complete when Shutdown has returned.
func (e *Engine) ShutdownReport() llm.ShutdownReport { return e.b.shutdownReport() }
