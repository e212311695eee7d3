package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	kubeNodes  = 4
	kubeShards = 8
	kubeKills  = 6
)

// TestKubernetes submits examples/ci/kubernetes.yaml to a real API server, controller manager and
// scheduler. Nodes are kwok's; for their kubelets this test runs the command of each pod that was
// placed. It takes nodes away while pods run, and compares the merged report with that of one run.
// scripts/install-kubernetes builds what it needs; etcd is Debian's.
func TestKubernetes(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG is not set")
	}
	for _, program := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s: scripts/install-kubernetes DIR; apt-get install etcd-server", program)
		}
	}
	manifest, err := os.ReadFile("../../examples/ci/kubernetes.yaml")
	require.NoError(t, err)
	dir, whole := campaign(t)
	k := startKube(t, dir)

	start := time.Now()
	k.apply(string(manifest))
	killed := 0
	for end := time.Now().Add(20 * time.Minute); !k.done("engine-tests"); {
		if time.Now().After(end) {
			t.Fatalf("the job has not ended:\n%s", k.kubectl("get", "pods,nodes", "-o", "wide"))
		}
		k.kubelet()
		if running := k.running(); killed < kubeKills && len(running) > 0 && mathrand.IntN(4) == 0 {
			if k.lose(running[mathrand.IntN(len(running))]) {
				killed++
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	k.kubectl("wait", "--for=condition=complete", "--timeout=60s", "job/engine-tests")
	t.Logf("%d shards on %d nodes: %s, %d nodes lost with a shard, %d pods", kubeShards, kubeNodes,
		time.Since(start).Round(time.Second), killed, len(k.seen))
	assert.Positive(t, killed, "no node was lost while it worked")
	assert.Len(t, k.seen, kubeShards+killed, "one pod per shard and one more per loss")
	compareCampaign(t, filepath.Join(dir, "shards"), kubeShards, whole)

	wrong := strings.NewReplacer("name: engine-tests", "name: wrong", "enginetest run ", "enginetest run --no-such-flag ").Replace(string(manifest))
	before := len(k.seen)
	k.apply(wrong)
	for end := time.Now().Add(10 * time.Minute); !k.done("wrong"); time.Sleep(200 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "the job has not ended")
		k.kubelet()
	}
	assert.Equal(t, kubeShards, len(k.seen)-before, "a wrong command is not tried again")
	assert.Equal(t, "0-7", k.kubectl("get", "job/wrong", "-o", "jsonpath={.status.failedIndexes}"))
}

// kube is a control plane on this machine.
type kube struct {
	t      *testing.T
	dir    string // of the control plane
	volume string // what is /reports in the pods
	seen   map[string]*kubePod
}

// kubePod is a pod that a node was given.
type kubePod struct {
	name, node string
	cmd        *exec.Cmd
	ended      chan int // its exit code
	over, lost bool
}

func startKube(t *testing.T, volume string) *kube {
	t.Helper()
	k := &kube{t: t, dir: t.TempDir(), volume: volume, seen: map[string]*kubePod{}}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	k.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	k.write("tokens", "secret,admin,admin,system:masters\n")
	k.write("config", kubeConfig)
	k.write("kwok.yaml", kwokConfig)
	t.Setenv("KUBECONFIG", k.path("config"))
	peers, clients := "http://127.0.0.1:23800", "http://127.0.0.1:23790"
	k.daemon("etcd", "--data-dir="+k.path("etcd"), "--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers)
	k.daemon("kube-apiserver", "--etcd-servers="+clients, "--bind-address=127.0.0.1", "--secure-port=26443", "--cert-dir="+k.path("api"),
		"--token-auth-file="+k.path("tokens"), "--authorization-mode=RBAC", "--service-account-issuer=https://localhost",
		"--service-account-key-file="+k.path("sa.key"), "--service-account-signing-key-file="+k.path("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount")
	require.Eventually(t, func() bool { return exec.Command("kubectl", "get", "--raw", "/readyz").Run() == nil },
		3*time.Minute, time.Second, "the API server is not ready")
	k.daemon("kube-controller-manager", "--kubeconfig="+k.path("config"), "--service-account-private-key-file="+k.path("sa.key"),
		"--controllers=*,-nodeipam", "--leader-elect=false", "--secure-port=26444", "--cert-dir="+k.path("cm"))
	k.daemon("kube-scheduler", "--kubeconfig="+k.path("config"), "--leader-elect=false", "--secure-port=26445",
		"--cert-dir="+k.path("scheduler"))
	k.daemon("kwok", "--kubeconfig="+k.path("config"), "--config="+k.path("kwok.yaml"), "--manage-all-nodes", "--server-address=127.0.0.1:26446")
	for n := range kubeNodes {
		k.apply(strings.ReplaceAll(kubeNode, "NAME", fmt.Sprintf("gpu-%d", n)))
	}
	k.apply(kubeVolume)
	k.kubectl("wait", "--for=condition=Ready", "--timeout=180s", "nodes", "--all")
	k.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=180s", "pvc", "--all")
	return k
}

func (k *kube) path(name string) string { return filepath.Join(k.dir, name) }

func (k *kube) write(name, text string) {
	require.NoError(k.t, os.WriteFile(k.path(name), []byte(text), 0o600))
}

func (k *kube) daemon(name string, args ...string) {
	k.t.Helper()
	cmd := exec.Command(name, args...)
	log, err := os.Create(k.path(name + ".log"))
	require.NoError(k.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(k.t, cmd.Start())
	_ = log.Close()
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	k.t.Cleanup(func() {
		select {
		case <-ended:
			text, _ := os.ReadFile(k.path(name + ".log"))
			k.t.Errorf("%s ended before the test:\n%s", name, text[max(0, len(text)-2000):])
		default:
			_ = cmd.Process.Kill()
			<-ended
		}
	})
}

func (k *kube) apply(manifest string) {
	k.t.Helper()
	cmd := exec.Command("kubectl", "apply", "--validate=strict", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.CombinedOutput()
	require.NoError(k.t, err, string(out))
}

func (k *kube) kubectl(args ...string) string {
	k.t.Helper()
	cmd := exec.Command("kubectl", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(k.t, err, "kubectl %s: %s", strings.Join(args, " "), &stderr)
	return string(out)
}

// done reports whether a job has ended, well or badly.
func (k *kube) done(job string) bool {
	k.t.Helper()
	conditions := k.kubectl("get", "job/"+job, "-o", `jsonpath={.status.conditions[?(@.status=="True")].type}`)
	return slices.ContainsFunc(strings.Fields(conditions), func(c string) bool { return c == "Complete" || c == "Failed" })
}

// kubelet does the work of all nodes once: it starts the pods that were placed, reports those that
// ended, and kills those that are deleted.
func (k *kube) kubelet() {
	k.t.Helper()
	var list struct{ Items []podJSON }
	require.NoError(k.t, json.Unmarshal([]byte(k.kubectl("get", "pods", "-o", "json")), &list))
	for _, p := range list.Items {
		pod := k.seen[p.Metadata.UID]
		switch {
		case p.Spec.NodeName == "":
		case pod == nil:
			k.seen[p.Metadata.UID] = k.begin(p)
		case pod.over:
		case p.Metadata.DeletionTimestamp != "":
			_ = syscall.Kill(-pod.cmd.Process.Pid, syscall.SIGKILL)
			<-pod.ended
			pod.lost = true
			k.end(pod, 137)
			_ = exec.Command("kubectl", "delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false").Run()
		default:
			select {
			case code := <-pod.ended:
				k.end(pod, code)
			default:
			}
		}
	}
	busy := map[string]int{}
	for _, p := range k.running() {
		busy[p.node]++
		assert.LessOrEqual(k.t, busy[p.node], 1, "%s has one GPU", p.node)
	}
}

// podJSON is what the test reads of a pod.
type podJSON struct {
	Metadata struct {
		Name, UID, DeletionTimestamp string
		Annotations                  map[string]string
	}
	Spec struct {
		NodeName   string
		Containers []struct{ Command, Args []string }
	}
}

// begin starts a pod's command, with its volume where the test has it.
func (k *kube) begin(p podJSON) *kubePod {
	c := p.Spec.Containers[0]
	words := append(slices.Clone(c.Command), c.Args...)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "/reports/", k.volume+"/")
	}
	pod := &kubePod{name: p.Metadata.Name, node: p.Spec.NodeName, cmd: exec.Command(words[0], words[1:]...), ended: make(chan int, 1)}
	pod.cmd.Env = append(os.Environ(), "JOB_COMPLETION_INDEX="+p.Metadata.Annotations["batch.kubernetes.io/job-completion-index"])
	pod.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(k.t, pod.cmd.Start())
	go func() {
		err := pod.cmd.Wait()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		pod.ended <- code
	}()
	k.status(pod, "Running", `"running":{}`)
	return pod
}

func (k *kube) end(pod *kubePod, code int) {
	pod.over = true
	phase := "Succeeded"
	if code != 0 {
		phase = "Failed"
	}
	k.status(pod, phase, fmt.Sprintf(`"terminated":{"exitCode":%d}`, code))
}

func (k *kube) status(pod *kubePod, phase, state string) {
	k.t.Helper()
	k.kubectl("patch", "pod", pod.name, "--subresource=status", "-p", fmt.Sprintf(
		`{"status":{"phase":%q,"containerStatuses":[{"name":"tests","image":"x","imageID":"","ready":false,"restartCount":0,"state":{%s}}]}}`,
		phase, state))
}

func (k *kube) running() (pods []*kubePod) {
	for _, p := range k.seen {
		if !p.over {
			pods = append(pods, p)
		}
	}
	return pods
}

// lose takes the node of a pod away, and brings it back once the pod is gone from it. It reports
// whether the pod was lost with it; one may have ended just before.
func (k *kube) lose(pod *kubePod) bool {
	k.t.Helper()
	k.kubectl("taint", "node", pod.node, "lost=yes:NoExecute")
	for end := time.Now().Add(2 * time.Minute); !pod.over; time.Sleep(100 * time.Millisecond) {
		require.True(k.t, time.Now().Before(end), "%s is not evicted", pod.name)
		k.kubelet()
	}
	k.kubectl("taint", "node", pod.node, "lost-")
	return pod.lost
}

const kubeConfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:26443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// kwokConfig leaves the pods alone: no pod has the label.
const kwokConfig = `apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: none}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchLabels: {kwok: none}}
  next: {}
`

const kubeNode = `apiVersion: v1
kind: Node
metadata: {name: NAME, labels: {kubernetes.io/hostname: NAME}}
status:
  allocatable: {cpu: "8", memory: 32Gi, pods: "20", nvidia.com/gpu: "1"}
  capacity: {cpu: "8", memory: 32Gi, pods: "20", nvidia.com/gpu: "1"}
`

const kubeVolume = `apiVersion: v1
kind: PersistentVolume
metadata: {name: test-reports}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany], hostPath: {path: /reports}, storageClassName: ""}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: test-reports}
spec: {accessModes: [ReadWriteMany], storageClassName: "", volumeName: test-reports, resources: {requests: {storage: 1Gi}}}
`
