package failures

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	qt "github.com/frankban/quicktest"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/stretchr/testify/suite"
	gotest "gotest.tools/v3/assert"

	"github.com/enginetest/enginetest/forkproc"
)

// faultEnv names the case, the style and the noise of TestFault in a child.
const faultEnv = "FAILURES_CASE"

func TestMain(m *testing.M) {
	if f := strings.Fields(os.Getenv(faultEnv)); len(f) == 3 && f[1] == "main" {
		if err := errorCases[f[0]](&testing.T{}); err != nil {
			log.Fatalf("set up: %v", err)
		}
	}
	if os.Getenv(faultEnv) != "" {
		forkproc.Main(m)
		return
	}
	os.Exit(m.Run())
}

// TestFault fails as its environment says; it runs in a child.
func TestFault(t *testing.T) {
	fields := strings.Fields(os.Getenv(faultEnv))
	if len(fields) != 3 {
		t.Skip("a part of TestMake")
	}
	name, style := fields[0], fields[1]
	noises[fields[2]](t)
	if f := testCases[name]; f != nil {
		f(t)
		return
	}
	f := errorCases[name]
	if f == nil {
		t.Fatalf("no case %q", name)
	}
	err := f(t)
	if err == nil {
		panic("harmless: " + name)
	}
	styles[style](t, err)
}

// styles are the ways in which suites fail with an error.
var styles = map[string]func(t *testing.T, err error){
	"fatal":  func(t *testing.T, err error) { t.Fatal(err) },
	"errorf": func(t *testing.T, err error) { t.Errorf("could not start the engine: %v", err) },
	"deep": func(t *testing.T, err error) {
		t.Run("model=tiny/tp=1", func(t *testing.T) { t.Fatalf("Open() failed: %s", err) })
	},
	"logged": func(t *testing.T, err error) {
		t.Logf("output of the command:\n%v", err)
		t.Fatal("set-up failed, see above")
	},
	"testify": func(t *testing.T, err error) { require.NoError(t, err) },
	"assert":  func(t *testing.T, err error) { assert.NoError(t, err, "opening %s", "tiny") },
	"nil":     func(t *testing.T, err error) { assert.Nil(t, err) }, //nolint:testifylint // its message is another
	"suite":   func(t *testing.T, err error) { suite.Run(t, &engineSuite{err: err}) },
	"gotest":  func(t *testing.T, err error) { gotest.NilError(t, err, "load tiny") },
	"quick":   func(t *testing.T, err error) { qt.New(t).Assert(err, qt.IsNil) },
	"gomega":  func(t *testing.T, err error) { gomega.NewWithT(t).Expect(err).NotTo(gomega.HaveOccurred()) },
	"succeed": func(t *testing.T, err error) {
		gomega.NewWithT(t).Expect(func() error { return err }()).To(gomega.Succeed(), "the engine starts")
	},
	"cmp": func(t *testing.T, err error) {
		if diff := cmp.Diff(nil, err, cmp.Transformer("text", func(err error) string { return err.Error() })); diff != "" {
			t.Errorf("unexpected error: %v", err)
		}
	},
	"printed": func(t *testing.T, err error) {
		fmt.Fprintf(os.Stderr, "level=ERROR msg=%q\n", err)
		t.FailNow()
	},
	"panic": func(_ *testing.T, err error) { panic(err) },
	"joined": func(t *testing.T, err error) {
		t.Fatal(fmt.Errorf("2 of 3 engines failed: %w", errors.Join(err, context.Canceled)))
	},
	"ginkgo": func(t *testing.T, err error) {
		gomega.RegisterFailHandler(ginkgo.Fail)
		ginkgo.Describe("the engine", func() {
			ginkgo.It("starts", func() { gomega.Expect(err).ToNot(gomega.HaveOccurred()) })
		})
		ginkgo.RunSpecs(t, "Engine Suite")
	},
	"main": func(t *testing.T, _ error) { t.Fatal("TestMain should have failed") },
}

type engineSuite struct {
	suite.Suite
	err error
}

func (s *engineSuite) SetupTest()    { s.Require().NoError(s.err, "set up") }
func (s *engineSuite) TestGenerate() {}

// noises are what else stands in a log.
var noises = map[string]func(t *testing.T){
	"quiet": func(*testing.T) {},
	"retries": func(t *testing.T) {
		t.Log("attempt 1: dial tcp 127.0.0.1:8000: connect: connection refused; will retry")
		fmt.Println("INFO health check passed after 2 attempts")
	},
	"config": func(*testing.T) {
		fmt.Println(`config: {"on_timeout":"abort","oom_policy":"preempt","no_space_left":"warn","gpu_memory_utilization":0.9}`)
	},
	"late": func(t *testing.T) {
		t.Cleanup(func() {
			fmt.Println("time=2026-01-01T00:00:00Z level=WARN msg=\"context canceled while draining\" pending=0")
			fmt.Println("removed /tmp/engine.sock: no such file or directory")
		})
	},
	"chatty": func(t *testing.T) {
		for i := range 40 {
			fmt.Printf("step %d: 8 running, 0 waiting, kv cache 12%%, 31.%d tok/s\n", i, i%10)
		}
		t.Log("NVML: not available, device memory is not sampled")
	},
}

// within bounds what a case waits for.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
