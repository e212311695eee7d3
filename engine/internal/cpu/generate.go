package cpu

//go:generate sh -c "cd gen && go run . -out ../kernels_amd64.s -stubs ../stubs_amd64.go -pkg cpu"
