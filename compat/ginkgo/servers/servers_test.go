// Package servers shows one server for a Ginkgo suite: no *testing.T is needed, and the server cannot outlive the suite's process.
//
//	cd compat/ginkgo && go test ./servers
package servers

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
	"github.com/onsi/ginkgo/v2"
)

func TestServers(t *testing.T) {
	ginkgo.RunSpecs(t, "servers")
}

// must ends the spec with an error.
func must(err error) {
	ginkgo.GinkgoHelper()
	if err != nil {
		ginkgo.Fail(err.Error())
	}
}

var engine *server.Server

var _ = ginkgo.BeforeSuite(func(ctx ginkgo.SpecContext) {
	dir := ginkgo.GinkgoT().TempDir()
	build := exec.Command("go", "build", "-o", dir, "./cmd/enginetest")
	build.Dir = "../../.."
	out, err := build.CombinedOutput()
	ginkgo.GinkgoWriter.Println(string(out))
	must(err)
	must(os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH")))
	engine, err = server.Enginetest().With(server.Log(ginkgo.GinkgoWriter)).Start(ctx)
	must(err)
	ginkgo.DeferCleanup(func(ctx ginkgo.SpecContext) { must(engine.Stop(ctx).Err()) })
})

var _ = ginkgo.Describe("a server", func() {
	ginkgo.It("adds up", func(ctx ginkgo.SpecContext) {
		outs, err := engine.Generate(ctx, llm.Request{Prompt: "2+3="})
		must(err)
		if got := outs[0].Completions[0].Text; got != "5" {
			ginkgo.Fail("2+3= is " + got)
		}
	})
	ginkgo.It("is idle between specs", func(ctx ginkgo.SpecContext) {
		activity, err := engine.Activity(ctx)
		must(err)
		if !activity.Idle() {
			ginkgo.Fail("requests of an earlier spec are still running")
		}
	})
})
