package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	slurmNodes  = 4
	slurmShards = 100
	slurmKills  = 20
)

// TestSlurm runs examples/ci/slurm.sh as a job array on a Slurm cluster whose four nodes are on this
// machine, kills nodes at random while it runs, and compares the merged report with that of one run.
// It needs root and Debian's slurmctld, slurmd, slurm-client and munge.
func TestSlurm(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG is not set")
	}
	for _, program := range []string{"munged", "slurmctld", "slurmd", "sbatch"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s: apt-get install slurmctld slurmd slurm-client munge", program)
		}
	}
	recipe, err := filepath.Abs("../../examples/ci/slurm.sh")
	require.NoError(t, err)
	dir, whole := campaign(t)

	c := startSlurm(t)
	start := time.Now()
	c.command("sbatch", "--parsable", fmt.Sprintf("--array=1-%d", slurmShards), "--nice=0", recipe)
	killed, busy := 0, 0
	for end := time.Now().Add(30 * time.Minute); ; {
		left := strings.Fields(c.command("squeue", "-h", "-r", "-o", "%i"))
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d shards have not ended:\n%s\n%s", len(left), c.command("squeue"), c.command("sinfo"))
		}
		time.Sleep(time.Second)
		if working := strings.Fields(c.command("squeue", "-h", "-t", "R", "-o", "%N")); killed < slurmKills && len(working) > 0 {
			node, err := strconv.Atoi(strings.TrimPrefix(working[rand.IntN(len(working))], "n"))
			require.NoError(t, err)
			busy += c.kill(node)
			c.start(node)
			killed++
			time.Sleep(time.Duration(rand.IntN(5000)) * time.Millisecond)
		}
	}
	restarts := c.restarts()
	t.Logf("%d shards on %d nodes: %s, %d node deaths that took %d shards with them, %d requeues", slurmShards,
		slurmNodes, time.Since(start).Round(time.Second), killed, busy, restarts)
	assert.Positive(t, busy, "no node died while it worked")

	compareCampaign(t, filepath.Join(dir, "reports"), slurmShards, whole)
}

// slurm is a cluster on this machine.
type slurm struct {
	t     *testing.T
	dir   string
	nodes [slurmNodes]*exec.Cmd
}

func startSlurm(t *testing.T) *slurm {
	t.Helper()
	c := &slurm{t: t, dir: t.TempDir()}
	host, err := os.Hostname()
	require.NoError(t, err)
	for _, d := range []string{"munge", "state"} {
		require.NoError(t, os.Mkdir(filepath.Join(c.dir, d), 0o755))
	}
	key := bytes.Repeat([]byte{byte(os.Getpid())}, 64)
	require.NoError(t, os.WriteFile(c.path("munge/key"), key, 0o400))
	var gres strings.Builder
	for n := range slurmNodes {
		fmt.Fprintf(&gres, "NodeName=n%d Name=gpu File=/dev/null\nNodeName=n%[1]d Name=gpu File=/dev/zero\n", n) // devices that any machine has
	}
	require.NoError(t, os.WriteFile(c.path("gres.conf"), []byte(gres.String()), 0o644))
	conf := strings.NewReplacer("DIR", c.dir, "HOST", host, "LAST", strconv.Itoa(slurmNodes-1)).Replace(slurmConf)
	require.NoError(t, os.WriteFile(c.path("slurm.conf"), []byte(conf), 0o644))
	t.Setenv("SLURM_CONF", c.path("slurm.conf"))
	// munged refuses a socket below a folder that others may write to, such as /tmp, without --force
	c.daemon("munged", "--foreground", "--force", "--socket="+c.path("munge/socket"), "--key-file="+c.path("munge/key"),
		"--log-file="+c.path("munge/log"), "--pid-file="+c.path("munge/pid"), "--seed-file="+c.path("munge/seed"))
	require.Eventually(t, func() bool { _, err := os.Stat(c.path("munge/socket")); return err == nil },
		time.Minute, 50*time.Millisecond)
	c.daemon("slurmctld", "-D")
	for n := range c.nodes {
		c.start(n)
	}
	require.Eventually(t, func() bool {
		out, _ := exec.Command("sinfo", "-h", "-N", "-t", "idle").Output()
		return bytes.Count(out, []byte("\n")) == slurmNodes
	}, 2*time.Minute, time.Second, "the nodes are not there")
	return c
}

func (c *slurm) path(name string) string { return filepath.Join(c.dir, name) }

// daemon starts a program that ends with the test.
func (c *slurm) daemon(name string, args ...string) *exec.Cmd {
	c.t.Helper()
	cmd := exec.Command(name, args...)
	log, err := os.OpenFile(c.path(name+".out"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(c.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c.t, cmd.Start())
	_ = log.Close()
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func (c *slurm) start(node int) {
	c.t.Helper()
	c.nodes[node] = c.daemon("slurmd", "-D", "-N", fmt.Sprintf("n%d", node))
}

// kill ends a node as a power failure does: its daemon, the supervisors of its jobs and the jobs. It
// returns how many jobs ran there.
func (c *slurm) kill(node int) int {
	_ = c.nodes[node].Process.Kill()
	_ = c.nodes[node].Wait()
	killed := map[int]bool{} // supervisors
	for range 3 {            // a process that was starting meanwhile
		processes := jobProcesses(fmt.Sprintf("SLURMD_NODENAME=n%d", node))
		for _, supervisor := range []bool{true, false} {
			for pid, parent := range processes {
				if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent)); supervisor {
					if strings.HasPrefix(string(comm), "slurmstepd") {
						_ = syscall.Kill(parent, syscall.SIGKILL)
						killed[parent] = true
					}
					continue
				}
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	return len(killed)
}

// jobProcesses returns the processes with a variable in their environment, and their parents.
func jobProcesses(variable string) map[int]int {
	found := map[int]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range files {
		env, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+variable+"\x00")) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 {
			found[pid], _ = strconv.Atoi(f[1])
		}
	}
	return found
}

// restarts counts how often Slurm ran a shard again.
func (c *slurm) restarts() (n int) {
	for line := range strings.Lines(c.command("scontrol", "show", "job")) {
		for field := range strings.FieldsSeq(line) {
			if value, ok := strings.CutPrefix(field, "Restarts="); ok {
				again, _ := strconv.Atoi(value)
				n += again
			}
		}
	}
	return n
}

func (c *slurm) command(name string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(c.t, err, "%s %s: %s", name, strings.Join(args, " "), &stderr)
	return string(out)
}

// slurmConf is a cluster without accounting: the nodes are daemons with a port each, and a node that
// does not answer for ten seconds is down and loses its jobs to the queue.
const slurmConf = `ClusterName=enginetest
SlurmctldHost=HOST(127.0.0.1)
SlurmctldPort=17000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=DIR/munge/socket
StateSaveLocation=DIR/state
SlurmdSpoolDir=DIR/%n
SlurmctldPidFile=DIR/slurmctld.pid
SlurmdPidFile=DIR/%n.pid
SlurmctldLogFile=DIR/slurmctld.log
SlurmdLogFile=DIR/%n.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
MinJobAge=7200
JobRequeue=1
MailProg=/bin/true
NodeName=n[0-LAST] NodeHostname=HOST NodeAddr=127.0.0.1 Port=[17001-17004] CPUs=2 RealMemory=100 Gres=gpu:2
PartitionName=gpu Nodes=ALL Default=YES MaxTime=01:00:00
`
