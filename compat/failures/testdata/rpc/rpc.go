// Package rpc is an engine that speaks gRPC, with defects that are switched on by name.
package rpc

import (
	"context"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

type service struct {
	pb.UnimplementedHealthServer
	blocks []int
}

// Check answers by the name of a defect.
func (s *service) Check(ctx context.Context, r *pb.HealthCheckRequest) (*pb.HealthCheckResponse, error) {
	switch r.Service {
	case "internal":
		return nil, status.Errorf(codes.Internal, "block 12 of request 3 is out of range")
	case "unknown":
		return nil, os.ErrClosed
	case "memory":
		return nil, status.Errorf(codes.ResourceExhausted, "CUDA out of memory: 2.0 GiB wanted, 0.4 GiB free")
	case "message":
		return nil, status.Errorf(codes.ResourceExhausted, "8 blocks are held by 0 requests")
	case "invalid":
		return nil, status.Errorf(codes.InvalidArgument, "max_tokens must be positive, got -3")
	case "worker":
		return nil, status.Errorf(codes.Unavailable, "rank 1: read unix @->/run/rank1.sock: EOF")
	case "precondition":
		return nil, status.Errorf(codes.FailedPrecondition, "no space left in the batch: 9 of 8 slots")
	case "panic":
		s.blocks[3]++
	case "exit":
		os.Exit(7)
	case "hang":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &pb.HealthCheckResponse{Status: pb.HealthCheckResponse_SERVING}, nil
}

// Serve answers on a listener.
func Serve(l net.Listener) error {
	s := grpc.NewServer()
	pb.RegisterHealthServer(s, &service{})
	return s.Serve(l)
}
