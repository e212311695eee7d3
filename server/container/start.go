package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	mobycontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/enginetest/enginetest/server"
	"github.com/enginetest/enginetest/server/internal/logbook"
)

// markVariable is in the environment of everything in the container: how its processes are known
// when they share the machine's namespaces.
const markVariable = "ENGINETEST_CONTAINER"

func start(ctx context.Context, cfg *config) (*Server, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, defaultStart,
			fmt.Errorf("the start timeout of %s, because the context had no deadline", defaultStart))
		defer cancel()
	}
	s, err := launch(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("container: %s: %w", cfg.image, err)
	}
	if err := s.awaitReady(ctx); err != nil {
		report := s.Stop(context.WithoutCancel(ctx))
		if left := left(report); left != nil {
			err = fmt.Errorf("%w\nand what it left behind: %w", err, left)
		}
		return nil, err
	}
	s.family.look()
	return s, nil
}

// launch starts the container, without waiting until its server is ready.
func launch(ctx context.Context, cfg *config) (_ *Server, err error) {
	s := &Server{cfg: cfg, started: time.Now(), exited: make(chan struct{})}
	s.family.mark = rand.Text()
	if err := s.choosePort(); err != nil {
		return nil, err
	}
	req := s.request()
	if s.book, err = s.newBook(req); err != nil {
		return nil, err
	}
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, errors.Join(err, s.book.Close())
	}
	s.docker = docker
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{
		ContainerRequest: req, Started: true, Logger: quiet{},
	})
	if c != nil {
		s.id = c.GetContainerID()
	}
	if err == nil {
		err = s.inspectStart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.remove(context.WithoutCancel(ctx)), s.book.Close(), docker.Close())
	}
	s.follow()
	return s, nil
}

// quiet is no logger: what is worth saying is in errors and reports.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (s *Server) choosePort() error {
	if !s.cfg.hostNetwork {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.cfg.port = l.Addr().(*net.TCPAddr).Port
	return l.Close()
}

func (s *Server) request() testcontainers.ContainerRequest {
	cfg := s.cfg
	env := maps.Clone(cfg.env)
	env[markVariable] = s.family.mark
	var args []string
	for _, a := range cfg.args {
		args = append(args, strings.ReplaceAll(a, server.Port, strconv.Itoa(cfg.port)))
	}
	req := testcontainers.ContainerRequest{Image: cfg.image, Cmd: args, Env: env}
	req.ConfigModifier = func(c *mobycontainer.Config) {
		if !cfg.hostNetwork {
			c.ExposedPorts = network.PortSet{tcp(cfg.port): {}}
		}
	}
	req.HostConfigModifier = func(h *mobycontainer.HostConfig) {
		if cfg.hostNetwork {
			h.NetworkMode = network.NetworkHost
		} else {
			h.PortBindings = network.PortMap{tcp(cfg.port): {{HostIP: netip.MustParseAddr("127.0.0.1")}}}
		}
		if cfg.gpus != nil {
			gpus := mobycontainer.DeviceRequest{DeviceIDs: cfg.gpus, Capabilities: [][]string{{"gpu"}}}
			if len(cfg.gpus) == 0 {
				gpus.DeviceIDs, gpus.Count = nil, -1
			}
			h.DeviceRequests = append(h.DeviceRequests, gpus)
		}
	}
	for _, f := range cfg.customize {
		f(&req)
	}
	return req
}

func tcp(port int) network.Port { return network.MustParsePort(strconv.Itoa(port) + "/tcp") }

func (s *Server) newBook(req testcontainers.ContainerRequest) (*logbook.Book, error) {
	var env []string
	for _, k := range slices.Sorted(maps.Keys(req.Env)) {
		env = append(env, k+"="+req.Env[k])
	}
	mask := logbook.Masker(req.Cmd, env, s.cfg.secrets)
	s.command = mask.Replace(strings.Join(append([]string{req.Image}, req.Cmd...), " "))
	return logbook.New(name(req.Image), s.cfg.logDir, s.cfg.log, mask)
}

// name is an image's without its registry and tag.
func name(image string) string {
	image = image[strings.LastIndexByte(image, '/')+1:]
	image, _, _ = strings.Cut(image, "@")
	image, _, _ = strings.Cut(image, ":")
	if image == "" {
		return "container"
	}
	return image
}

// inspectStart notes where the server is, and which processes are its own.
func (s *Server) inspectStart(ctx context.Context) error {
	res, err := s.docker.ContainerInspect(ctx, s.id, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	s.family.begin(s.id, res.Container.State.Pid)
	port := strconv.Itoa(s.cfg.port)
	if !s.cfg.hostNetwork && res.Container.NetworkSettings != nil {
		for _, b := range res.Container.NetworkSettings.Ports[tcp(s.cfg.port)] {
			port = b.HostPort
		}
	}
	s.address = net.JoinHostPort("127.0.0.1", port)
	return nil
}

// awaitReady attaches to the server as soon as it answers.
func (s *Server) awaitReady(ctx context.Context) error {
	attach := server.Attach("http://" + s.address).With(append([]server.AttachOption{server.Name(name(s.cfg.image))}, s.cfg.client...)...)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if exit := s.exitError(false); exit != nil {
			return exit
		}
		try, cancel := context.WithTimeout(ctx, probeTimeout)
		var err error
		s.Server, err = attach.Start(try)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return s.exitError(false)
		case <-ctx.Done():
			s.book.Flush()
			return &server.NotReadyError{
				Name: name(s.cfg.image), Command: s.command, PID: s.family.init, Waited: time.Since(s.started),
				Silent: s.book.Silent(), Probe: "attach", Last: err, Lines: s.book.Tail(shownLines),
				LogFile: s.book.Path(), Cause: context.Cause(ctx),
			}
		case <-time.After(pause):
		}
	}
}

const (
	probeTimeout = 5 * time.Second
	shownLines   = 20
)
