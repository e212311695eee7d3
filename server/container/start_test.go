package container

import (
	"slices"
	"strings"
	"testing"

	mobycontainer "github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"

	"github.com/enginetest/enginetest/server"
)

// requested returns what the container engine is asked for.
func requested(opts ...Option) (testcontainers.ContainerRequest, mobycontainer.HostConfig, mobycontainer.Config) {
	cfg := &config{image: "ghcr.io/some/server:v1", args: []string{"--port", server.Port}, port: defaultPort, env: map[string]string{}}
	for _, o := range opts {
		o(cfg)
	}
	req := (&Server{cfg: cfg}).request()
	var host mobycontainer.HostConfig
	var c mobycontainer.Config
	req.HostConfigModifier(&host)
	req.ConfigModifier(&c)
	return req, host, c
}

func TestGPUs(t *testing.T) {
	if _, host, _ := requested(); host.DeviceRequests != nil {
		t.Errorf("GPUs without the option: %v", host.DeviceRequests)
	}
	_, host, _ := requested(GPUs())
	if r := host.DeviceRequests; len(r) != 1 || r[0].Count != -1 || r[0].DeviceIDs != nil || r[0].Capabilities[0][0] != "gpu" {
		t.Errorf("all GPUs: %+v", r)
	}
	_, host, _ = requested(GPUs("0", "GPU-1"))
	if r := host.DeviceRequests; len(r) != 1 || r[0].Count != 0 || !slices.Equal(r[0].DeviceIDs, []string{"0", "GPU-1"}) {
		t.Errorf("two GPUs: %+v", r)
	}
}

func TestPortIsOnTheLoopbackAddress(t *testing.T) {
	req, host, c := requested(Port(1234))
	b := host.PortBindings[tcp(1234)]
	if len(b) != 1 || b[0].HostIP.String() != "127.0.0.1" || b[0].HostPort != "" {
		t.Errorf("published: %+v", host.PortBindings)
	}
	if _, ok := c.ExposedPorts[tcp(1234)]; !ok || !slices.Equal(req.Cmd, []string{"--port", "1234"}) {
		t.Errorf("exposed: %v, arguments: %v", c.ExposedPorts, req.Cmd)
	}
	if _, host, c = requested(HostNetwork()); host.NetworkMode != "host" || host.PortBindings != nil || c.ExposedPorts != nil {
		t.Errorf("on the machine's network: %+v, %v", host, c.ExposedPorts)
	}
}

func TestSecretsAreMasked(t *testing.T) {
	s := &Server{cfg: &config{image: "i", args: []string{"--api-key", "k-123456"}, env: map[string]string{"HF_TOKEN": "hf_abcdef"}}}
	book, err := s.newBook(s.request())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := book.Write([]byte("loading with hf_abcdef and k-123456\n")); err != nil {
		t.Fatal(err)
	}
	if all := s.command + book.Tail(1)[0].Text; strings.Contains(all, "k-123456") || strings.Contains(all, "hf_abcdef") {
		t.Error(all)
	}
}

func TestName(t *testing.T) {
	for image, want := range map[string]string{
		"vllm/vllm-openai:v0.10.0": "vllm-openai", "localhost:5000/a/b@sha256:12": "b", "b": "b", "": "container",
	} {
		if got := name(image); got != want {
			t.Errorf("name(%q) is %q, want %q", image, got, want)
		}
	}
}
