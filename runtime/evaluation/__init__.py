"""The policy measured on prompts that it is not trained on, during a run and by `evenstep eval`.

config      the `validation:` block and its named sets
sets        a set with every key resolved, and the limits that an engine needs for all of them
examiner    sets where an engine samples them
statistics  shares, means, medians and pass@k with their confidence intervals
figures     what an evaluation says: accuracy, pass@k, reward, lengths, truncation
"""
