package leakcheck

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestLibrary: goroutines are put together by the library that started them only when nothing but
// the library's own code runs in them.
func TestLibrary(t *testing.T) {
	const cache = "/root/go/pkg/mod/"
	std := frame{"bufio.(*Reader).Read", "/usr/local/go/src/bufio/bufio.go", "1"}
	grpc := frame{"google.golang.org/grpc/internal/transport.NewHTTP2Client", cache + "google.golang.org/grpc@v1.85.0/internal/transport/http2_client.go", "1"}
	user := frame{"github.com/acme/llm.poll", "/src/llm/poll.go", "1"}
	group := frame{"golang.org/x/sync/errgroup.(*Group).Go", cache + "golang.org/x/sync@v0.24.0/errgroup/errgroup.go", "1"}
	toml := frame{"github.com/BurntSushi/toml.Decode", "github.com/!burnt!sushi/toml@v1.0.0/decode.go", "1"}
	for _, row := range []struct {
		frames  []frame
		creator frame
		want    string
	}{
		{[]frame{std, grpc}, grpc, "google.golang.org/grpc"},
		{[]frame{toml}, toml, "github.com/BurntSushi/toml"},
		{[]frame{user, group}, group, ""},
		{[]frame{grpc}, user, ""},
		{[]frame{std}, frame{"net/http.(*Transport).dialConn", "/usr/local/go/src/net/http/transport.go", "1"}, "net/http"},
		{[]frame{user}, frame{"net/http.(*Server).Serve", "/usr/local/go/src/net/http/server.go", "1"}, ""},
		{[]frame{std}, frame{"time.goFunc", "/usr/local/go/src/time/sleep.go", "1"}, ""},
	} {
		g := goroutine{frames: row.frames, creator: row.creator}
		assert.Equal(t, row.want, g.library(), "%v", row)
	}
}

func TestByLibrary(t *testing.T) {
	fs := byLibrary([]Finding{
		{Kind: KindGoroutine, Signature: "goroutine: llm.poll"},
		{Kind: KindGoroutine, Signature: "goroutine: grpc.a", cause: "grpc"},
		{Kind: KindReference, Signature: "reference: b", cause: "grpc"},
		{Kind: KindGoroutine, Signature: "goroutine: grpc.c", cause: "grpc"},
		{Kind: KindGoroutine, Signature: "goroutine: llm.poll"},
	})
	assert.Len(t, fs, 4)
	assert.Equal(t, []string{"grpc.c"}, fs[1].Also)
	assert.Equal(t, "goroutine: grpc*", fs[1].pattern())
	assert.Contains(t, fs[1].Detail, "all of grpc")
}
