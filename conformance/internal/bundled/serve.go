package bundled

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/engine/openai"
	"github.com/enginetest/enginetest/server"
)

// envServe makes a program that calls ServeIfTold a server at the address that is its value.
const envServe = "CONFORMANCE_SERVE"

// ServeIfTold serves the bundled model when this process was started by Served, and does not return
// then.
func ServeIfTold() {
	address := os.Getenv(envServe)
	if address == "" {
		return
	}
	if err := serve(address); err != nil {
		_, _ = os.Stderr.WriteString("serve: " + err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}

// Served starts this program again as a server of the bundled model. It must call ServeIfTold first
// of all.
func Served() (server.Opener, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return server.Command(self).With(server.Env(envServe+"=127.0.0.1:"+server.Port),
		server.Speaks(server.ProtocolEnginetest), server.Name("served")), nil
}

// serve answers until SIGTERM.
func serve(address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	e, err := engine.Open(ctx, Config(engine.InProcess, 1))
	if err != nil {
		return err
	}
	handler := openai.New(openai.Options{Name: "bundled"})
	if _, err := handler.SetModel(e); err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		err := e.Shutdown(context.Background()) // ends what runs
		ended <- errors.Join(err, s.Shutdown(context.Background()))
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}
