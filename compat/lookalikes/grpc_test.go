package lookalikes

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// healthServer answers for an engine.
type healthServer struct {
	healthpb.UnimplementedHealthServer
	e *engine
}

func (s *healthServer) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if s.e.generate(r.Service) == "" {
		return nil, status.Error(codes.NotFound, r.Service)
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func (s *healthServer) Watch(r *healthpb.HealthCheckRequest, to grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	for range 3 {
		if err := to.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}); err != nil {
			return err
		}
	}
	if r.Service == "forever" {
		<-to.Context().Done()
	}
	return nil
}

// serve runs a server until the test ends, and returns how to reach it.
func serve(t *testing.T, e *engine, opts ...grpc.ServerOption) *bufconn.Listener {
	lis := bufconn.Listen(64 << 10)
	s := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(s, &healthServer{e: e})
	done := make(chan error)
	go func() { done <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return lis
}

func dial(t *testing.T, lis *bufconn.Listener, opts ...grpc.DialOption) (*grpc.ClientConn, healthpb.HealthClient) {
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	conn, err := grpc.NewClient("passthrough:///engine", opts...)
	ok(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, healthpb.NewHealthClient(conn)
}

func check(t *testing.T, c healthpb.HealthClient) {
	t.Helper()
	_, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "engine"})
	ok(t, err)
}

func TestGRPCCall(t *testing.T) {
	e := guarded(t)
	_, c := dial(t, serve(t, e))
	check(t, c)
}

func TestGRPCClientNeverUsed(t *testing.T) {
	e := guarded(t)
	dial(t, serve(t, e))
}

func TestGRPCFailedCall(t *testing.T) {
	e := guarded(t)
	e.weights = nil
	_, c := dial(t, serve(t, e))
	if _, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
}

func TestGRPCStreamToItsEnd(t *testing.T) {
	e := guarded(t)
	_, c := dial(t, serve(t, e))
	s, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	ok(t, err)
	for err == nil {
		_, err = s.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestGRPCStreamCancelled(t *testing.T) {
	e := guarded(t)
	_, c := dial(t, serve(t, e))
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.Watch(ctx, &healthpb.HealthCheckRequest{Service: "forever"})
	ok(t, err)
	_, err = s.Recv()
	ok(t, err)
	cancel()
}

func TestGRPCStreamLeftOpenByTheTest(t *testing.T) {
	e := guarded(t)
	_, c := dial(t, serve(t, e))
	s, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "forever"})
	ok(t, err)
	_, err = s.Recv()
	ok(t, err)
}

func TestGRPCInterceptors(t *testing.T) {
	e := guarded(t)
	lis := serve(t, e, grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo,
		next grpc.UnaryHandler,
	) (any, error) {
		_ = e.generate("server")
		return next(ctx, r)
	}))
	_, c := dial(t, lis, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, r, reply any,
		cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		_ = e.generate("client")
		return invoke(ctx, method, r, reply, cc, opts...)
	}))
	check(t, c)
}

func TestGRPCDeadline(t *testing.T) {
	e := guarded(t)
	_, c := dial(t, serve(t, e))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if s, err := c.Watch(ctx, &healthpb.HealthCheckRequest{Service: "forever"}); err == nil {
		for err == nil {
			_, err = s.Recv()
		}
	}
}

func TestGRPCGracefulStop(t *testing.T) {
	e := guarded(t)
	lis := bufconn.Listen(64 << 10)
	s := grpc.NewServer(grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute}))
	healthpb.RegisterHealthServer(s, &healthServer{e: e})
	done := make(chan error)
	go func() { done <- s.Serve(lis) }()
	conn, c := dial(t, lis)
	check(t, c)
	ok(t, conn.Close())
	s.GracefulStop()
	ok(t, <-done)
}

func TestGRPCOverTCP(t *testing.T) {
	e := guarded(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, &healthServer{e: e})
	done := make(chan error)
	go func() { done <- s.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	ok(t, err)
	check(t, healthpb.NewHealthClient(conn))
	ok(t, conn.Close())
	s.Stop()
	ok(t, <-done)
}

func TestGRPCConnectionStates(t *testing.T) {
	e := guarded(t)
	conn, c := dial(t, serve(t, e))
	conn.Connect()
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		if !conn.WaitForStateChange(t.Context(), s) {
			t.Fatal("no connection")
		}
	}
	check(t, c)
}

func TestGRPCHealthService(t *testing.T) {
	e := guarded(t)
	h := health.NewServer()
	h.SetServingStatus(e.generate("engine"), healthpb.HealthCheckResponse_SERVING)
	h.Shutdown()
}
