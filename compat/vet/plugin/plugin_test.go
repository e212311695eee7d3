package plugin

import (
	"testing"

	"github.com/golangci/plugin-module-register/register"
)

func TestPlugin(t *testing.T) {
	build, err := register.GetPlugin(Name)
	if err != nil {
		t.Fatal(err)
	}
	all := names(t, build, nil)
	some := names(t, build, map[string]any{"disable": []string{"exit"}})
	if len(some) != len(all)-1 || !all["exit"] || some["exit"] {
		t.Errorf("all are %v; without exit %v", all, some)
	}
	if _, err := build(map[string]any{"disable": []string{"exti"}}); err == nil {
		t.Error("a name that does not exist is accepted")
	}
}

func names(t *testing.T, build register.NewPlugin, settings any) map[string]bool {
	t.Helper()
	p, err := build(settings)
	if err != nil {
		t.Fatal(err)
	}
	if p.GetLoadMode() != register.LoadModeTypesInfo {
		t.Errorf("the load mode is %s", p.GetLoadMode())
	}
	list, err := p.BuildAnalyzers()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, a := range list {
		found[a.Name] = true
	}
	return found
}
