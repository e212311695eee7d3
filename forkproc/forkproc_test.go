package forkproc

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	if os.Getenv("FP_QUICK") == "" {
		t.Skip()
	}
	t.Run("pass", func(t *testing.T) {
		Run(t, func(t *testing.T) { fmt.Println("hi"); t.Log("log", os.Getpid()); t.Attr("a", "b") })
	})
	t.Run("skip", func(t *testing.T) { Run(t, func(t *testing.T) { t.Skip("because") }) })
	t.Run("fail", func(t *testing.T) { Run(t, func(t *testing.T) { t.Error("bad") }) })
	t.Run("sub", func(t *testing.T) {
		Run(t, func(t *testing.T) {
			t.Run("a", func(t *testing.T) { t.Run("deep", func(t *testing.T) { t.Log("deep") }) })
			t.Run("b", func(t *testing.T) { t.Skip("s") })
			t.Run("c", func(t *testing.T) { t.Parallel(); fmt.Print("no newline") })
			t.Run("d", func(t *testing.T) { t.Parallel(); t.Fatal("d fails") })
		})
	})
	t.Run("panic", func(t *testing.T) { Run(t, func(t *testing.T) { t.Run("x", func(t *testing.T) { panic("boo") }) }) })
	t.Run("exit0", func(t *testing.T) { Run(t, func(t *testing.T) { syscall.Exit(0) }) })
	t.Run("osexit0", func(t *testing.T) { Run(t, func(t *testing.T) { os.Exit(0) }) })
	t.Run("kill", func(t *testing.T) { Run(t, func(t *testing.T) { syscall.Kill(os.Getpid(), 9) }) })
	t.Run("expkill", func(t *testing.T) { Run(t, func(t *testing.T) { syscall.Kill(os.Getpid(), 9) }, Expect(Killed(9))) })
	t.Run("timeout", func(t *testing.T) {
		Run(t, func(t *testing.T) { time.Sleep(time.Hour) }, Timeout(300*time.Millisecond))
	})
}
