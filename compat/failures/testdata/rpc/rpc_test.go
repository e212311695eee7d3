package rpc_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"example.com/rpc"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("RPC_ADDR"); addr != "" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			panic(err)
		}
		_ = rpc.Serve(l)
		return
	}
	os.Exit(m.Run())
}

// check starts an engine and asks it.
func check(t *testing.T, ctx context.Context, what string) error { //nolint:revive // t comes first
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "RPC_ADDR="+l.Addr().String())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := dial(t, l.Addr().String())
	if _, err := c.Check(ctx, &pb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		return err
	}
	_, err = c.Check(ctx, &pb.HealthCheckRequest{Service: what})
	return err
}

func dial(t *testing.T, to string) pb.HealthClient {
	conn, err := grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewHealthClient(conn)
}

func TestGenerate(t *testing.T) {
	if err := check(t, t.Context(), "internal"); err != nil {
		t.Fatalf("Generate: %v", err)
	}
}

func TestClosed(t *testing.T) {
	if err := check(t, t.Context(), "unknown"); err != nil {
		t.Error(err)
	}
}

func TestBigBatch(t *testing.T) {
	if err := check(t, t.Context(), "memory"); err != nil {
		t.Fatalf("Generate: %v", err)
	}
}

func TestBlocks(t *testing.T) {
	if err := check(t, t.Context(), "message"); err != nil {
		t.Fatalf("Generate: %v", err)
	}
}

func TestArguments(t *testing.T) {
	if err := check(t, t.Context(), "invalid"); err != nil {
		t.Fatal(err)
	}
}

func TestRanks(t *testing.T) {
	if err := check(t, t.Context(), "worker"); err != nil {
		t.Fatal("generate:", err)
	}
}

func TestBatch(t *testing.T) {
	if err := check(t, t.Context(), "precondition"); err != nil {
		t.Fatalf("add to the batch: %v", err)
	}
}

func TestRow(t *testing.T) {
	if err := check(t, t.Context(), "panic"); err != nil {
		t.Fatalf("row 3: %v", err)
	}
}

func TestStep(t *testing.T) {
	if err := check(t, t.Context(), "exit"); err != nil {
		t.Fatalf("step: %v", err)
	}
}

func TestAfterStep(t *testing.T) {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	_ = l.Close()
	if _, err := dial(t, l.Addr().String()).Check(t.Context(), &pb.HealthCheckRequest{}); err != nil {
		t.Errorf("engine: %v", err)
	}
}

func TestSlow(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := check(t, ctx, "hang"); err != nil {
		t.Fatalf("first token: %v", err)
	}
}

func TestCode(t *testing.T) {
	err := check(t, t.Context(), "invalid")
	if got := status.Code(err).String(); got != "Unavailable" {
		t.Errorf("status code = %s, want Unavailable", got)
	}
}

func TestModelServer(t *testing.T) {
	if _, err := dial(t, "dns:///weights.example.com:443").Check(t.Context(), &pb.HealthCheckRequest{}); err != nil {
		t.Fatalf("fetch weights: %v", err)
	}
}

func TestStorage(t *testing.T) {
	if _, err := dial(t, "203.0.113.8:443").Check(t.Context(), &pb.HealthCheckRequest{}); err != nil {
		t.Fatalf("open bucket at storage.example.com: %v", err)
	}
}
