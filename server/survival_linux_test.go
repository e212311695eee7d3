package server_test

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Nothing of a server outlives a test process that is killed: no t.Cleanup runs then, and no Stop.
func TestTestProcessIsKilled(t *testing.T) {
	for name, spawn := range map[string]string{
		"own session":         "setsid sleep 300; true",
		"cleared environment": "env -i setsid -w sleep 300; true",
		"double fork":         "(setsid sleep 300 & setsid sleep 301 &) ; sleep 302",
		"nohup, deaf":         `nohup setsid sh -c 'trap "" TERM HUP INT; sleep 300; sleep 300'; true`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exe, err := os.Executable()
			require.NoError(t, err)
			tmp := t.TempDir()
			host := exec.Command(exe, "-spawn", spawn)
			host.Env = append(os.Environ(), hostEnv+"=1", "TMPDIR="+tmp, "GORACE=atexit_sleep_ms=0")
			out, err := host.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, host.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			family := map[int]int64{}
			for f := range strings.FieldsSeq(line) {
				pid, err := strconv.Atoi(f)
				require.NoError(t, err, line)
				if st, ok := procfs.StatOf(pid); ok { // a shell in between may have ended meanwhile
					family[pid] = st.Start
				}
			}
			require.NoError(t, host.Process.Kill())
			_ = host.Wait()
			require.NoError(t, err)
			require.NotEmpty(t, family, line)
			for pid, start := range family {
				for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
					st, ok := procfs.StatOf(pid)
					if !ok || st.Start != start || st.Dead() {
						break
					}
					if time.Now().After(end) {
						_ = syscall.Kill(pid, syscall.SIGKILL)
						t.Errorf("process %d (%s) outlived the test process", pid, procfs.CommandLine(pid))
						break
					}
				}
			}
		})
	}
}
