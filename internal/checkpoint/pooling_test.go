package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sentenceFolder writes the files of sentence-transformers.
func sentenceFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

const (
	threeModules = `[{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},
		{"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
		{"idx":2,"name":"2","path":"2_Normalize","type":"sentence_transformers.models.Normalize"}]`
	twoModules = `[{"path":"","type":"sentence_transformers.base.modules.transformer.Transformer"},
		{"path":"1_Pooling","type":"sentence_transformers.sentence_transformer.modules.pooling.Pooling"}]`
)

func TestReadPooling(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Pooling
	}{
		"no files": {nil, Pooling{}},
		"Qwen3-Embedding": {map[string]string{
			"modules.json": threeModules,
			"1_Pooling/config.json": `{"word_embedding_dimension":8,"pooling_mode_cls_token":false,"pooling_mode_mean_tokens":false,
				"pooling_mode_max_tokens":false,"pooling_mode_lasttoken":true,"include_prompt":true}`,
		}, Pooling{Type: "last", Normalize: true}},
		"mean, not normalised": {map[string]string{
			"modules.json":              twoModules,
			"1_Pooling/config.json":     `{"word_embedding_dimension":8,"pooling_mode_mean_tokens":true}`,
			"sentence_bert_config.json": `{"max_seq_length":256,"do_lower_case":false}`,
		}, Pooling{Type: "mean", MaxTokens: 256}},
		"cls": {map[string]string{
			"modules.json":          twoModules,
			"1_Pooling/config.json": `{"word_embedding_dimension":8,"pooling_mode_cls_token":true}`,
		}, Pooling{Type: "cls"}},
		"the mode as a text": {map[string]string{
			"modules.json": twoModules, "1_Pooling/config.json": `{"embedding_dimension":8,"pooling_mode":"lasttoken"}`,
		}, Pooling{Type: "last"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadPooling(sentenceFolder(t, c.files), 8)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestReadPoolingRefuses(t *testing.T) {
	pooling := func(text string) map[string]string {
		return map[string]string{"modules.json": twoModules, "1_Pooling/config.json": text}
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"not a list":     {map[string]string{"modules.json": `{}`}, "not a list of modules"},
		"empty":          {map[string]string{"modules.json": `[]`}, "an empty list"},
		"no pooling":     {map[string]string{"modules.json": `[{"path":"","type":"Transformer"}]`}, "no Pooling module"},
		"a dense layer":  {map[string]string{"modules.json": `[{"type":"Transformer"},{"type":"a.Dense"}]`}, `[1].type: unsupported module: got a.Dense`},
		"no config":      {map[string]string{"modules.json": twoModules}, "1_Pooling/config.json: cannot read"},
		"another width":  {pooling(`{"word_embedding_dimension":9,"pooling_mode_cls_token":true}`), "is not the model's hidden_size: got 9, want 8"},
		"max":            {pooling(`{"pooling_mode_max_tokens":true}`), "unsupported pooling: got max_tokens, want one of cls, mean and lasttoken"},
		"two modes":      {pooling(`{"pooling_mode_mean_tokens":true,"pooling_mode_cls_token":true}`), "got cls and mean"},
		"no mode":        {pooling(`{"pooling_mode_mean_tokens":false}`), "unsupported pooling"},
		"flag of a text": {pooling(`{"pooling_mode_mean_tokens":"yes"}`), "wrong type"},
		"out of the folder": {
			map[string]string{"modules.json": `[{"type":"Transformer"},{"type":"Pooling","path":"../../../etc"}]`},
			"etc/config.json: cannot read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sentenceFolder(t, c.files)
			_, err := ReadPooling(dir, 8)
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.ErrorContains(t, err, c.want)
			assert.Contains(t, e.File, dir, "no file outside the checkpoint is read")
		})
	}
}
