package retain

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestShortNames(t *testing.T) {
	for fn, want := range map[string]string{
		"github.com/acme/llm.(*Runner).Forward-fm":        "llm.(*Runner).Forward-fm",
		"github.com/onsi/ginkgo/v2.RunSpecs":              "ginkgo.RunSpecs",
		"github.com/onsi/ginkgo/v2/internal.(*Suite).Run": "internal.(*Suite).Run",
		"gopkg.in/yaml.v3.(*Decoder).Decode":              "yaml.(*Decoder).Decode",
		"runtime.main":                                    "runtime.main",
		"acme/llm.Map[github.com/acme/v2.Key].Get":        "llm.Map[github.com/acme/v2.Key].Get",
		"github.com/acme/llm.Start.func1":                 "llm.Start.func1",
		"v2.F":                                            "v2.F",
		"github.com/dgraph-io/ristretto/v2.NewCache[...]": "ristretto.NewCache[...]",
	} {
		assert.Equal(t, want, shortFunc(fn), fn)
	}
	assert.Equal(t, "ginkgo/suite.go", shortFile("/go/pkg/mod/github.com/onsi/ginkgo/v2@v2.34.0/suite.go"))
	assert.Equal(t, "zap/log.go", shortFile("/go/pkg/mod/go.uber.org/zap@v1.2.3/log.go"))
	assert.Equal(t, "llm/run.go", shortFile("/src/llm/run.go"))
}

func TestStandard(t *testing.T) {
	for name, want := range map[string]bool{
		"net/http.DefaultServeMux": true,
		"expvar.vars":              true,
		"github.com/acme/llm.x":    false,
		"main.x":                   false,
		"github.com/enginetest/enginetest/leakcheck/internal/retain.one": false,
	} {
		assert.Equal(t, want, standard(name), name)
	}
}
