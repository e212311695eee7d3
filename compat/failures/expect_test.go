package failures

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	qt "github.com/frankban/quicktest"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"github.com/stretchr/testify/suite"
	gotest "gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

type answerOf struct {
	Text   string
	Reason string
	Tokens []int
}

// expectations are tests whose expectation is not met; many compare texts that machines fail with.
var expectations = map[string]func(t *testing.T){
	"test--got-want":    func(t *testing.T) { t.Errorf("len(outputs) = %d; want %d", 3, 4) },
	"test--want-got":    func(t *testing.T) { t.Errorf("wanted %q but got %q", "out of memory", "") },
	"test--expected":    func(t *testing.T) { t.Errorf("expected status 503 Service Unavailable, was 200 OK") },
	"test--instead-of":  func(t *testing.T) { t.Fatal(`Err() returned "connection refused" instead of "broken pipe"`) },
	"test--no-error":    func(t *testing.T) { t.Fatal("expected an out of memory error, there was none") },
	"test--should-fail": func(t *testing.T) { t.Error("Open succeeded on a read-only file system") },
	"test--missing":     func(t *testing.T) { t.Error(`the log lacks "no space left on device"`) },
	"test--bleu":        func(t *testing.T) { t.Errorf("BLEU %.2f is below the bound of %.2f", 0.21, 0.35) },
	"test--tolerance":   func(t *testing.T) { t.Fatalf("logit 17: %g is not within %g of %g", 1.25, 1e-4, 1.5) },
	"test--latency":     func(t *testing.T) { t.Errorf("p99 latency is 812ms, more than the 500ms that the SLO allows") },
	"test--lines": func(t *testing.T) {
		t.Errorf("output:\n\tengine: timed out\nwant:\n\tengine: no such host\n")
	},
	"test--unified": func(t *testing.T) {
		t.Errorf("usage text has changed:\n--- testdata/usage.golden\n+++ got\n@@ -1,2 +1,2 @@\n-error: address already in use\n+error: address in use\n")
	},
	"test--cmp": func(t *testing.T) {
		if d := cmp.Diff(answerOf{Text: "4", Reason: "stop"}, answerOf{Text: "4", Reason: "no space left on device"}); d != "" {
			t.Errorf("answer (-want +got):\n%s", d)
		}
	},
	"test--cmp-bare": func(t *testing.T) {
		if d := cmp.Diff([]string{"connection reset by peer"}, []string{"i/o timeout"}); d != "" {
			t.Fatal(d)
		}
	},
	"test--testify-error-contains": func(t *testing.T) { assert.ErrorContains(t, syscall.ENOSPC, "CUDA out of memory") },
	"test--testify-error":          func(t *testing.T) { require.Error(t, nil, "a full disk is an error") }, //nolint:testifylint // it must fail
	"test--testify-errorias":       func(t *testing.T) { var e *fs.PathError; assert.ErrorAs(t, syscall.EADDRINUSE, &e) },
	"test--testify-eq-struct": func(t *testing.T) {
		assert.Equal(t, answerOf{"timeout", "length", []int{1}}, answerOf{"timed out", "stop", []int{1, 2}})
	},
	"test--testify-regexp": func(t *testing.T) {
		assert.Regexp(t, "^no such host", "temporary failure in name resolution")
	},
	"test--testify-elements": func(t *testing.T) { assert.ElementsMatch(t, []string{"NVML: ", "xid 79"}, []string{"gpu is lost"}) },
	"test--testify-less":     func(t *testing.T) { assert.Less(t, 0.71, 0.5, "perplexity after out of memory") },
	"test--testify-delta":    func(t *testing.T) { assert.InDelta(t, 1.0, 1.2, 0.1) },
	"test--testify-panics":   func(t *testing.T) { assert.Panics(t, func() {}, "device lost must panic") },
	"test--testify-true":     func(t *testing.T) { assert.True(t, strings.Contains("deadline exceeded", "EOF"), "the error says EOF") }, //nolint:testifylint // its message is another
	"test--testify-empty":    func(t *testing.T) { assert.Empty(t, []error{syscall.ETIMEDOUT, syscall.EIO}) },
	"test--testify-mock": func(t *testing.T) {
		m := &mock.Mock{}
		m.Test(t)
		m.On("Generate", "2+3=")
		m.MethodCalled("Generate", "connection refused")
	},
	"test--testify-suite": func(t *testing.T) { suite.Run(t, new(wrongSuite)) },
	"test--gotest-equal":  func(t *testing.T) { gotest.Equal(t, "network is unreachable", "no route to host") },
	"test--gotest-deep":   func(t *testing.T) { gotest.DeepEqual(t, answerOf{Text: "a"}, answerOf{Text: "timed out"}) },
	"test--gotest-check": func(t *testing.T) {
		gotest.Check(t, is.Contains("429 Too Many Requests", "503"))
		gotest.Check(t, is.Len([]int{1}, 2))
	},
	"test--gotest-error":   func(t *testing.T) { gotest.ErrorContains(t, syscall.EROFS, "no space left on device") },
	"test--gotest-errorty": func(t *testing.T) { gotest.ErrorType(t, syscall.ECONNREFUSED, &fs.PathError{}) },
	"test--gotest-errorcm": func(t *testing.T) { gotest.Error(t, errors.New("dial tcp: i/o timeout"), "dial tcp: no such host") },
	"test--gotest-expr":    func(t *testing.T) { n := 3; gotest.Assert(t, n == 4, "free blocks after out of memory") },
	"test--quick-equal":    func(t *testing.T) { qt.New(t).Assert("disk quota exceeded", qt.Equals, "") },
	"test--quick-match":    func(t *testing.T) { qt.New(t).Check(syscall.ENOSPC, qt.ErrorMatches, "input/output error") },
	"test--quick-deep":     func(t *testing.T) { qt.New(t).Assert([]int{1, 2}, qt.DeepEquals, []int{1, 3}) },
	"test--gomega-equal":   func(t *testing.T) { gomega.NewWithT(t).Expect("broken pipe").To(gomega.Equal("EOF")) },
	"test--gomega-json": func(t *testing.T) {
		gomega.NewWithT(t).Expect(`{"error":"no such host"}`).To(gomega.MatchJSON(`{"error":null}`))
	},
	"test--gomega-haveocc": func(t *testing.T) { gomega.NewWithT(t).Expect(error(nil)).To(gomega.HaveOccurred()) },
	"test--gomega-match": func(t *testing.T) {
		gomega.NewWithT(t).Expect(error(syscall.ENOMEM)).To(gomega.MatchError("read-only file system"))
	},
	"test--gomega-len": func(t *testing.T) { gomega.NewWithT(t).Expect([]string{"docker.io"}).To(gomega.HaveLen(2)) },
	"test--gomega-num": func(t *testing.T) { gomega.NewWithT(t).Expect(3).To(gomega.BeNumerically(">", 5), "free GPUs") },
	"timeout--gomega-eventually": func(t *testing.T) {
		gomega.NewWithT(t).Eventually(func() int { return 2 }, "300ms", "20ms").Should(gomega.Equal(3))
	},
	"timeout--testify-eventually": func(t *testing.T) { eventually(t) },
	"timeout--poll":               func(t *testing.T) { pollOn(t) },
	"test--ginkgo": func(t *testing.T) {
		gomega.RegisterFailHandler(ginkgo.Fail)
		ginkgo.Describe("sampling", func() {
			ginkgo.It("is greedy", func() { gomega.Expect("connection refused").To(gomega.HavePrefix("The")) })
			ginkgo.It("has a bound", func() {})
		})
		ginkgo.RunSpecs(t, "Sampling Suite")
	},
	"test--ginkgo-fail": func(t *testing.T) {
		gomega.RegisterFailHandler(ginkgo.Fail)
		ginkgo.It("names the disk", func() { ginkgo.Fail("the message lacks the path: no space left on device") })
		ginkgo.RunSpecs(t, "Messages Suite")
	},
	"engine--ginkgo-panic": func(t *testing.T) {
		gomega.RegisterFailHandler(ginkgo.Fail)
		ginkgo.It("generates", func() { strike() })
		ginkgo.RunSpecs(t, "Engine Suite")
	},
	"timeout--ginkgo": func(t *testing.T) {
		gomega.RegisterFailHandler(ginkgo.Fail)
		ginkgo.It("drains", func(ctx ginkgo.SpecContext) { <-ctx.Done() }, ginkgo.SpecTimeout(200e6))
		ginkgo.RunSpecs(t, "Drain Suite")
	},
	"test--panic-nil":    func(*testing.T) { var a *answerOf; _ = a.Text },
	"test--panic-type":   func(*testing.T) { var v any = "out of memory"; _ = v.(error) },
	"test--panic-slice":  func(*testing.T) { s := make([]int, 2); _ = slices.Clone(s)[:len(os.Args)+5] },
	"test--panic-helper": func(t *testing.T) { must(t, "7 tokens") },
	"test--panic-divide": func(*testing.T) { n := len(os.Args) - len(os.Args); _ = 5 / n },
	"test--fail-now":     func(t *testing.T) { fmt.Println("checked 12 of 12 prompts"); t.FailNow() },
	"test--subtests": func(t *testing.T) {
		for _, p := range []string{"greedy", "top-p", "beam"} {
			t.Run(p, func(t *testing.T) {
				if p != "greedy" {
					t.Errorf("%s: got 7 tokens, want 8", p)
				}
			})
		}
	},
	"test--error-value": func(t *testing.T) {
		if err := error(syscall.ENOSPC); !errors.Is(err, syscall.EROFS) {
			t.Errorf("Save() error = %v, wantErr %v", err, syscall.EROFS)
		}
	},
	"engine--library-panic":  func(*testing.T) { strike() },
	"engine--library-thread": func(*testing.T) { go strike(); select {} },
	"engine--library-race":   func(t *testing.T) { fmt.Println("loading tiny"); t.Cleanup(func() { strike() }) },
}

type wrongSuite struct{ suite.Suite }

func (s *wrongSuite) TestStop()   { s.Equal("stop", "length") }
func (s *wrongSuite) TestErrors() { s.EqualError(syscall.EPIPE, "no such host") }

func must(_ *testing.T, s string) {
	if !strings.HasSuffix(s, "8 tokens") {
		panic("must: " + s)
	}
}

func init() { maps.Copy(testCases, expectations) }
