"""The processes that ranks are: started, reused, watched, told what to do."""
