// Package nvml runs package gpuwait over NVIDIA's own mock of NVML, the library of
// github.com/NVIDIA/k8s-test-infra: many kinds of GPUs, and failures at run time. The module proxy
// does not have that repository; build the library from a clone of it, and name both:
//
//	make -C CLONE/pkg/gpu/mocknvml NO_PADDING=1
//	export MOCK_NVML=CLONE/pkg/gpu/mocknvml/libnvidia-ml.so.1 MOCK_NVML_CONFIGS=CLONE/pkg/gpu/mocknvml/configs
//	CGO_ENABLED=1 go test ./... && CGO_ENABLED=0 go test ./...
//
// With CGO_ENABLED=1 gpuwait calls it through go-nvml, with CGO_ENABLED=0 by the addresses of its
// functions.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
)

// inChild runs the test again in a process of its own: the library reads its settings once.
func inChild(t *testing.T, config, overrides string) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run", "^TestChild$", "-test.v", "-test.count=1")
	c.Env = append(os.Environ(), "NVML_CHILD="+filepath.Base(config), "MOCK_NVML_CONFIG="+config,
		"MOCK_NVML_OVERRIDES="+overrides, "MOCK_NVML_OVERRIDES_TTL=1ms")
	out, err := c.CombinedOutput()
	if err != nil || testing.Verbose() {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestKindsOfGPUs(t *testing.T) {
	if os.Getenv("MOCK_NVML") == "" {
		t.Skip("MOCK_NVML names the library; the package's comment says how it is built")
	}
	configs, err := filepath.Glob(filepath.Join(os.Getenv("MOCK_NVML_CONFIGS"), "*.yaml"))
	if err != nil || len(configs) == 0 {
		t.Fatalf("no settings in MOCK_NVML_CONFIGS: %v", err)
	}
	for _, config := range configs {
		t.Run(filepath.Base(config), func(t *testing.T) { inChild(t, config, filepath.Join(t.TempDir(), "overrides.yaml")) })
	}
}

// TestChild is the body of TestKindsOfGPUs, in a process of its own.
func TestChild(t *testing.T) {
	if os.Getenv("NVML_CHILD") == "" {
		t.Skip("run by another test, in a process of its own")
	}
	src, err := gpuwait.OpenNVML(os.Getenv("MOCK_NVML"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	devices, err := src.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("no devices: %v", err)
	}
	for _, d := range devices {
		m, err := src.Memory(d.UUID)
		if err != nil || m.Total <= 0 || m.Used < 0 || m.Used > m.Total {
			t.Errorf("%v: %+v, %v", d, m, err)
		}
		if holders, err := src.Holders(d.UUID); err != nil || len(holders) > 0 {
			t.Errorf("%v: holders %v, %v", d, holders, err)
		}
	}
	t.Logf("%d × %s", len(devices), devices[0].Name)
	life(t, src, devices[0].UUID)
	lost(t, src, devices[0].UUID)
}

// override writes what the library is to say of its first device from now on, and waits for it.
func override(t *testing.T, text string, seen func() bool) {
	t.Helper()
	file := os.Getenv("MOCK_NVML_OVERRIDES")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !seen(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the library never said so: %s", text)
		}
	}
}

// life is an engine's that takes 8 GiB: held while they are this process's, returned after that.
func life(t *testing.T, src gpuwait.Source, uuid string) {
	t.Helper()
	self := func(pid int) bool { return pid == os.Getpid() }
	a, err := gpuwait.NewAccount(context.Background(), src, self, gpuwait.Devices(uuid))
	if err != nil {
		t.Fatal(err)
	}
	holders := func() int {
		list, _ := src.Holders(uuid)
		return len(list)
	}
	m, _ := src.Memory(uuid)
	override(t, fmt.Sprintf("devices:\n  \"0\":\n    memory:\n      used_bytes: %d\n    processes:\n      - pid: %d\n        type: C\n        used_memory_mib: 8192\n",
		m.Used+8<<30, os.Getpid()), func() bool { return holders() == 1 })
	a.Read()
	_, err = a.Returned(context.Background(), gpuwait.Timeout(300*time.Millisecond))
	if !errors.Is(err, gpuwait.ErrNotClear) || !strings.Contains(err.Error(), "this engine's processes still hold 8.0 GiB") {
		t.Errorf("a leak of 8 GiB: %v", err)
	}
	override(t, "devices: {}\n", func() bool { return holders() == 0 })
	r, err := a.Returned(context.Background(), gpuwait.Timeout(time.Minute))
	if err != nil || !strings.HasPrefix(string(r.Devices[0].Proof), "the driver listed") {
		t.Errorf("returned: %v, %v", r, err)
	}
}

// lost takes the device away.
func lost(t *testing.T, src gpuwait.Source, uuid string) {
	t.Helper()
	var err error
	override(t, "devices:\n  \"0\":\n    failure:\n      mode: lost\n", func() bool {
		_, err = src.Memory(uuid)
		return err != nil
	})
	if !errors.Is(err, gpuwait.ErrLost) {
		t.Errorf("a lost device: %v", err)
	}
}
