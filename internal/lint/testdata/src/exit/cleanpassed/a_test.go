package cleanpassed

import "testing"

func TestMain(m *testing.M) { run(m) }

func run(m *testing.M) { m.Run() }
